#include "lockstep/distribute/strategy.hpp"

#include <cstring>
#include <span>

#include "lockstep/base/hash.hpp"

namespace lockstep {
namespace {

// Throws ConfigError unless replica r has devices of rank r only.
void require_own_devices(const DeviceAssignment& assignment, int ranks) {
  if (assignment.num_replicas() != ranks) {
    throw ConfigError("a device assignment of " + std::to_string(assignment.num_replicas()) +
                          " replicas for " + std::to_string(ranks) + " ranks",
                      "each rank is one replica: assign as many replicas as there are ranks");
  }
  for (int replica = 0; replica < ranks; ++replica) {
    for (int id = 0; id < assignment.num_logical_devices(); ++id) {
      if (assignment.rank(replica, id) == replica) continue;
      throw ConfigError("logical device " + std::to_string(id) + " of replica " +
                            std::to_string(replica) + " belongs to rank " +
                            std::to_string(assignment.rank(replica, id)),
                        "each rank is one replica: give a computation shape within one rank");
    }
  }
}

}  // namespace

std::uint64_t InputContext::per_replica_batch_size(std::uint64_t global) const {
  if (global % num_replicas_in_sync == 0) return global / num_replicas_in_sync;
  throw ConfigError("a global batch of " + std::to_string(global) + " does not divide by " +
                        std::to_string(num_replicas_in_sync) + " replicas in sync",
                    "give a multiple of the number of replicas, or use distribute_dataset");
}

Strategy::Strategy(comm::Communicator& comm, const std::string& device,
                   std::optional<DeviceAssignment> assignment)
    : comm_(comm), cluster_(resolve_cluster(comm, device)), assignment_(std::move(assignment)) {
  comm::require_equal(comm, "the device assignment",
                      {{"it", assignment_ ? to_text(*assignment_) : "none"}},
                      "build it from one topology and shape on every rank");
  comm::together(comm, [&] {
    if (assignment_) require_own_devices(*assignment_, comm.size());
  });
}

void Strategy::require_logical_device(int id) const {
  if (assignment_) return assignment_->require_logical_device(id);
  if (id == 0) return;
  throw ConfigError("no logical device " + std::to_string(id) +
                        ": without a device assignment each replica has 1 partition",
                    "give the strategy a device assignment");
}

InputContext Strategy::input_context() const noexcept {
  const auto ranks = static_cast<std::uint64_t>(comm_.size());
  return {ranks, static_cast<std::uint64_t>(comm_.rank()), ranks};
}

std::string Strategy::describe_texts(const std::string& mine) const {
  std::string text;
  int replica = 0;
  for (const auto& theirs : comm::gather_text(comm_, mine)) {
    text += (replica == 0 ? "" : ", ") + std::to_string(replica) + ": " + theirs;
    ++replica;
  }
  return "{" + text + "}";
}

}  // namespace lockstep

namespace lockstep::collective {
std::string pack(const Shape& shape, const void* values, std::size_t bytes) {
  std::vector<std::uint64_t> head = {shape.size()};
  head.insert(head.end(), shape.begin(), shape.end());
  std::string packed(reinterpret_cast<const char*>(head.data()), head.size() * sizeof(head[0]));
  if (bytes > 0) packed.append(static_cast<const char*>(values), bytes);
  return packed;
}

Shape unpack_shape(std::string_view packed) {
  std::uint64_t axes = 0;
  std::memcpy(&axes, packed.data(), sizeof(axes));
  std::vector<std::uint64_t> lengths(axes);
  if (axes > 0) {
    std::memcpy(lengths.data(), packed.data() + sizeof(axes), axes * sizeof(std::uint64_t));
  }
  return {lengths.begin(), lengths.end()};
}

const char* unpack_values(std::string_view packed) {
  std::uint64_t axes = 0;
  std::memcpy(&axes, packed.data(), sizeof(axes));
  return packed.data() + (axes + 1) * sizeof(std::uint64_t);
}

std::size_t axis_from_0(std::ptrdiff_t axis, std::size_t axes) noexcept {
  const auto count = static_cast<std::ptrdiff_t>(axes);
  return static_cast<std::size_t>(axis < 0 && axis + count >= 0 ? axis + count : axis);
}

namespace {

constexpr const char* how_axes_are_counted =
    "axes are counted from 0 for the first one, or from -1 for the last one";

std::string no_axis(const Shape& shape, std::size_t axis) {
  return "shape " + to_text(shape) + " has no axis " +
         std::to_string(static_cast<std::ptrdiff_t>(axis));
}

}  // namespace

AxisView view_axis(const Shape& shape, std::size_t axis) {
  if (axis >= shape.size()) throw ConfigError(no_axis(shape, axis), how_axes_are_counted);
  AxisView view{.length = shape[axis]};
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i < axis) view.outer *= shape[i];
    if (i > axis) view.inner *= shape[i];
  }
  return view;
}

void refuse(const std::string& problem, const std::string& remedy) {
  throw comm::AgreedError(ExitCode::usage, problem, remedy);
}

void require_alike(const std::vector<Shape>& shapes, std::optional<std::size_t> axis) {
  for (Shape shape : shapes) {
    Shape first = shapes.front();
    if (axis && (*axis >= shape.size() || *axis >= first.size())) {
      refuse(no_axis(*axis >= shape.size() ? shape : first, *axis), how_axes_are_counted);
    }
    if (axis) shape[*axis] = first[*axis] = 0;
    if (shape == first) continue;
    refuse("replicas hold shapes " + to_text(shapes.front()) + " and " + to_text(shape) +
               (axis ? " (0: any length)" : ""),
           "give values of one shape");
  }
}

Shape take_shape(std::string_view& rest) {
  Shape shape = unpack_shape(rest);
  rest.remove_prefix(static_cast<std::size_t>(unpack_values(rest) - rest.data()));
  return shape;
}

std::string take_text(std::string_view& rest) {
  const std::size_t length = take_shape(rest).front();
  std::string text(rest.substr(0, length));
  rest.remove_prefix(length);
  return text;
}

std::string bits_of(const std::string& packed) {
  return to_hex(hash_of(std::as_bytes(std::span(packed))));
}

}  // namespace lockstep::collective
