#include "lockstep/distribute/dtensor.hpp"

#include <map>

#include "lockstep/base/aligned.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/numerics/strict.hpp"

namespace lockstep::sharding {
namespace {

// A rank's coordinates along the mesh dimensions whose ranks hold different pieces.
std::vector<int> place_of(const Layout& layout, int rank) {
  std::vector<int> place;
  for (const auto& [name, size] : layout.mesh().dimensions()) {
    if (!layout.axis_of(name) && !layout.is_partial_over(name)) continue;
    place.push_back(layout.mesh().coordinate(rank, name));
  }
  return place;
}

using Holders = std::map<std::string, std::vector<int>>;  // bits -> ranks

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min<std::size_t>(ranks.size(), 8); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text + (ranks.size() > 8 ? ", ..." : "");
}

// "rank 2 differs from ranks 0, 1": the minority; without one, the ranks that differ from rank 0.
std::string difference(const Holders& holders) {
  const auto majority = std::max_element(holders.begin(), holders.end(), [](auto& a, auto& b) {
    return std::pair(a.second.size(), -a.second[0]) < std::pair(b.second.size(), -b.second[0]);
  });
  std::vector<int> odd;
  for (auto it = holders.begin(); it != holders.end(); ++it) {
    if (it != majority) odd.insert(odd.end(), it->second.begin(), it->second.end());
  }
  std::sort(odd.begin(), odd.end());
  return ranks_text(odd) + (odd.size() == 1 ? " differs from " : " differ from ") +
         ranks_text(majority->second);
}

}  // namespace

Shape agree_on_pieces(Mesh& mesh, const std::string& type, const Shape& piece,
                      const Layout& layout) {
  auto& comm = mesh.communicator();
  comm::require_equal(comm, "the tensor to be packed",
                      {{"layout", to_text(layout)}, {"type", type}},
                      "pack the same tensor on every rank");
  std::vector<Shape> pieces;
  for (const auto& packed : comm::gather_text(comm, exchange::pack(piece, nullptr, 0))) {
    pieces.push_back(exchange::unpack_shape(packed));
  }
  Shape shape;
  comm::together(comm, [&] {
    require_same_mesh(mesh, layout);
    shape = global_shape(layout, pieces);
  });
  return shape;
}

void agree_on_whole(Mesh& mesh, const std::string& type, const Shape& shape, const Layout& layout,
                    const std::string& bits) {
  auto& comm = mesh.communicator();
  comm::require_equal(comm, "the tensor to be copied to the mesh",
                      {{"layout", to_text(layout)}, {"type", type}, {"shape", to_text(shape)}},
                      "give every rank the same tensor, or pack a piece on each");
  comm::together(comm, [&] {
    require_same_mesh(mesh, layout);
    layout.local_shape(shape, mesh.rank());
    if (!layout.is_partial()) return;
    throw ConfigError("a whole tensor has no addends for " + to_text(layout),
                      "pack an addend on each rank");
  });
  comm::require_equal(comm, "the tensor to be copied to the mesh", {{"hash of its bits", bits}},
                      "give every rank the same tensor, or pack a piece on each",
                      ExitCode::invariant);
}

void require_same_mesh(const Mesh& mesh, const Layout& layout) {
  if (layout.mesh() == mesh.shape()) return;
  throw ConfigError("layout " + to_text(layout) + " for mesh [" + to_text(mesh.shape()) + "]",
                    "make the layout with the tensor's mesh");
}

void require_same_replicas(Mesh& mesh, const Layout& layout, const std::string& bits) {
  std::map<std::vector<int>, Holders> pieces;
  int rank = 0;
  for (const auto& theirs : comm::gather_text(mesh.communicator(), bits)) {
    pieces[place_of(layout, rank)][theirs].push_back(rank);
    ++rank;
  }
  std::string text;
  for (const auto& [place, holders] : pieces) {
    if (holders.size() > 1) text += "\n  " + difference(holders);
  }
  if (text.empty()) return;
  throw comm::AgreedError(ExitCode::invariant,
                          "replicas of a tensor with " + to_text(layout) + " differ:" + text,
                          "look for a replica that computed it alone, or for faulty memory");
}

Tensor<float> product(const Tensor<float>& a, const Tensor<float>& b) {
  const std::size_t rows = a.shape()[0];
  const std::size_t inner = a.shape()[1];
  const std::size_t columns = b.shape()[1];
  std::vector<float> values(rows * columns);
  if (!values.empty() && inner > 0) {
    const Panels panels{inner, columns};
    AlignedBuffer<float> weights(panels.size());
    to_panels({b.values().data(), inner, columns}, panels, weights.span());
    const AlignedBuffer<float> bias(round_to_unit(columns));
    strict_products(Simd::automatic)
        .forward({a.values().data(), rows, inner}, {panels, weights.span()}, bias.span(),
                 Activation::identity, {values.data(), rows, columns}, Output::overwrite);
  }
  return {{rows, columns}, std::move(values)};
}

std::vector<std::size_t> broadcast_strides(const Shape& operand, const Shape& result) {
  std::vector<std::size_t> strides(result.size());
  std::size_t stride = 1;
  for (std::size_t i = 1; i <= operand.size(); ++i) {
    const std::size_t length = operand[operand.size() - i];
    strides[result.size() - i] = length == 1 ? 0 : stride;
    stride *= length;
  }
  return strides;
}

}  // namespace lockstep::sharding
