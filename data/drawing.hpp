// One drawn digit as a pure function of where it stands in the built-in data set.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::data {

/// Height and width of a drawn image, as in MNIST.
constexpr std::size_t drawing_side = 28;
constexpr std::size_t drawing_pixels = drawing_side * drawing_side;

/// Where an image stands: the same place is the same image on every machine.
struct DrawingId {
  std::uint64_t seed;
  std::uint32_t part;   ///< 0 training, 1 test
  std::uint64_t index;  ///< in the part
};

/// The digit that is drawn at `id`: uniform over [0, 10).
int drawn_label(const DrawingId& id) noexcept;

/// Draws `id`: bright ink on a black ground, row by row from the top left.
///
/// A digit's strokes go through a random smooth map of the plane, every point of them shakes, and
/// a round pen of random width follows. Integers, and floats in fixed operations without libm
/// and without contraction, so that every machine with IEEE arithmetic gives the same bytes.
void draw(const DrawingId& id, std::span<std::uint8_t, drawing_pixels> image) noexcept;

}  // namespace lockstep::data
