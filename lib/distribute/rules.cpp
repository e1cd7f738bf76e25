#include "lib/distribute/rules.hpp"

#include <algorithm>

#include "lib/distribute/exchange.hpp"

namespace lockstep::sharding {
namespace {

using Specs = std::vector<std::string>;

void require_one_mesh(const Layout& a, const Layout& b) {
  if (a.mesh() == b.mesh()) return;
  exchange::refuse("tensors on mesh [" + to_text(a.mesh()) + "] and on mesh [" + to_text(b.mesh()) +
                       "] do not meet",
                   "put both on one mesh");
}

// The operand's length on an axis of the result, which it may lack: axes are aligned at the last.
std::size_t length_at(const Shape& shape, std::size_t rank, std::size_t axis) {
  const std::size_t missing = rank - shape.size();
  return axis < missing ? 1 : shape[axis - missing];
}

Shape broadcast(const Shape& a, const Shape& b) {
  Shape shape(std::max(a.size(), b.size()));
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    const std::size_t left = length_at(a, shape.size(), axis);
    const std::size_t right = length_at(b, shape.size(), axis);
    if (left != right && left != 1 && right != 1) {
      exchange::refuse("shapes " + to_text(a) + " and " + to_text(b) + " do not fit",
                       "give axes of equal length, counted from the last, or of length 1");
    }
    shape[axis] = left == 1 ? right : left;
  }
  return shape;
}

// An operand as the result sees it: it has an axis where it is as long there as the result.
struct Operand {
  const Layout& layout;
  const Shape& shape;
  const Shape& result;

  std::size_t missing() const { return result.size() - shape.size(); }
  bool has(std::size_t axis) const {
    return axis >= missing() && shape[axis - missing()] == result[axis];
  }
  const std::string& spec(std::size_t axis) const { return layout.spec(axis - missing()); }

  void add_specs(Specs& specs) const {
    for (std::size_t axis = 0; axis < specs.size(); ++axis) {
      if (!has(axis) || specs[axis] != Layout::unsharded) continue;
      if (std::find(specs.begin(), specs.end(), spec(axis)) == specs.end())
        specs[axis] = spec(axis);
    }
  }
  Layout moved(const Specs& specs) const {
    Specs own;
    for (std::size_t axis = missing(); axis < specs.size(); ++axis) {
      own.push_back(has(axis) ? specs[axis] : Layout::unsharded);
    }
    return {layout.mesh(), own};
  }
};

}  // namespace

BinaryPlan matmul_plan(const Layout& a, const Shape& a_shape, const Layout& b,
                       const Shape& b_shape) {
  require_one_mesh(a, b);
  if (a_shape.size() != 2 || b_shape.size() != 2 || a_shape[1] != b_shape[0]) {
    exchange::refuse("no product of shapes " + to_text(a_shape) + " and " + to_text(b_shape),
                     "give matrices [m, k] and [k, n]");
  }
  const std::string& rows = a.spec(0);
  const std::string columns = b.spec(1) == rows ? Layout::unsharded : b.spec(1);
  const auto sums_over = [&](const std::string& spec) {
    return spec != Layout::unsharded && spec != rows && spec != columns;
  };
  const std::string inner = sums_over(a.spec(1))   ? a.spec(1)
                            : sums_over(b.spec(0)) ? b.spec(0)
                                                   : Layout::unsharded;
  const Layout result(a.mesh(), {rows, columns});
  return {Layout(a.mesh(), {rows, inner}),
          Layout(a.mesh(), {inner, columns}),
          inner == Layout::unsharded ? result : result.partial_over(inner),
          {a_shape[0], b_shape[1]}};
}

BinaryPlan elementwise_plan(const Layout& a, const Shape& a_shape, const Layout& b,
                            const Shape& b_shape) {
  require_one_mesh(a, b);
  const Shape shape = broadcast(a_shape, b_shape);
  const Operand left{a, a_shape, shape};
  const Operand right{b, b_shape, shape};
  const bool right_leads = elements_of(b_shape) > elements_of(a_shape);
  Specs specs(shape.size(), Layout::unsharded);
  (right_leads ? right : left).add_specs(specs);
  (right_leads ? left : right).add_specs(specs);
  return {left.moved(specs), right.moved(specs), Layout(a.mesh(), specs), shape};
}

Layout reduced_layout(const Layout& layout, std::size_t axis) {
  if (axis >= layout.rank()) {
    exchange::refuse("a tensor with " + to_text(layout) + " has no axis " + std::to_string(axis),
                     "axes are counted from 0");
  }
  const auto& spec = layout.spec(axis);
  const Layout rest = layout.without_axis(axis);
  return spec == Layout::unsharded ? rest : rest.partial_over(spec);
}

Layout fully_reduced_layout(const Layout& layout) {
  Layout result = layout;
  while (result.rank() > 0) result = reduced_layout(result, 0);
  return result;
}

}  // namespace lockstep::sharding
