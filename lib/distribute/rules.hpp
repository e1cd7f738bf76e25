// How operations on tensors of a mesh lay out their operands and results: arithmetic.
#pragma once

#include "lib/distribute/layout.hpp"

namespace lockstep::sharding {

/// What an operation on two tensors does: both are moved, each rank computes on its pieces alone,
/// and what it gets is a piece of the result, or an addend of one.
struct BinaryPlan {
  Layout a;
  Layout b;
  Layout result;  ///< partial where ranks hold addends
  Shape shape;    ///< of the result, globally
};

/// [m, k] times [k, n]; see matmul in dtensor_math.hpp.
/// Errors   throws comm::AgreedError (2) for other shapes, and for layouts of different meshes.
BinaryPlan matmul_plan(const Layout& a, const Shape& a_shape, const Layout& b,
                       const Shape& b_shape);

/// Value by value, with broadcasting; see elementwise in dtensor_math.hpp.
/// Errors   throws comm::AgreedError (2) for shapes that do not fit, and for different meshes.
BinaryPlan elementwise_plan(const Layout& a, const Shape& a_shape, const Layout& b,
                            const Shape& b_shape);

/// The result of adding up an axis, each rank those indices that it owns.
/// Errors   throws comm::AgreedError (2) for an axis that there is not.
Layout reduced_layout(const Layout& layout, std::size_t axis);

/// The same of all axes.
Layout fully_reduced_layout(const Layout& layout);

}  // namespace lockstep::sharding
