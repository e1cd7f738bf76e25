// The windows of a convolution as rows of a matrix, and their sum back into images.
#pragma once

#include <cstring>

#include "lib/nn/layer.hpp"

namespace lockstep::nn {

/// kernel x kernel windows around or inside every pixel of `input`; `output` has one pixel for
/// each. A row of a window is one run of the image's values, but for what reaches beyond it.
struct Windows {
  Extent input;
  Extent output;
  std::size_t kernel = 1;
  std::size_t before = 0;  ///< zeros before the first row and column

  /// Values of a window: row, column, channel.
  std::size_t size() const noexcept { return kernel * kernel * input.channels; }

  /// Sets `windows` [output.positions(), size()] to those of one image; zero where a window reaches
  /// beyond it.
  template <class Real>
  void gather(const Real* image, Real* windows) const {
    const std::size_t width = kernel * input.channels;
    for_each_window([&](std::size_t row, std::size_t column, bool inside) {
      if (inside) {
        const Real* in = image + first_of(row, column);
        for (std::size_t k = 0; k < kernel; ++k, in += row_values(), windows += width) {
          copy(in, width, windows);
        }
        return;
      }
      std::fill_n(windows, size(), Real{0});
      for_each_run(row, column, [&](std::size_t at, std::size_t first, std::size_t count) {
        std::copy_n(image + first, count, windows + at);
      });
      windows += size();
    });
  }

  /// Sets the image to the sums of its `windows` that hold each pixel, in the order of the windows.
  template <class Real>
  void scatter(const Real* windows, Real* image) const {
    const std::size_t width = kernel * input.channels;
    std::fill_n(image, input.size(), Real{0});
    for_each_window([&](std::size_t row, std::size_t column, bool inside) {
      if (inside) {
        Real* out = image + first_of(row, column);
        for (std::size_t k = 0; k < kernel; ++k, out += row_values()) {
          add(windows + k * width, width, out);
        }
      } else {
        for_each_run(row, column, [&](std::size_t at, std::size_t first, std::size_t count) {
          add(windows + at, count, image + first);
        });
      }
      windows += size();
    });
  }

 private:
  std::size_t row_values() const noexcept { return input.columns * input.channels; }

  /// Where the window at this row and column, which are inside, begins in the image.
  std::size_t first_of(std::size_t row, std::size_t column) const noexcept {
    return ((row - before) * input.columns + column - before) * input.channels;
  }

  /// Calls visit(row, column, inside) for every window in order: where it begins, counted with the
  /// padding, and whether all of it lies in the image.
  template <class Visit>
  void for_each_window(Visit visit) const {
    for (std::size_t row = 0; row < output.rows; ++row) {
      const bool rows_inside = row >= before && row + kernel <= input.rows + before;
      for (std::size_t column = 0; column < output.columns; ++column) {
        visit(row, column,
              rows_inside && column >= before && column + kernel <= input.columns + before);
      }
    }
  }

  /// Calls visit(at, first, count) for every row of a window that reaches into the image: `count`
  /// values from `at` on in the window, from `first` on in the image.
  template <class Visit>
  void for_each_run(std::size_t row, std::size_t column, Visit visit) const {
    const std::size_t skipped = column < before ? before - column : 0;
    const std::size_t end = std::min(column + kernel, input.columns + before);
    if (end <= column + skipped) return;
    const std::size_t count = end - column - skipped;
    for (std::size_t k = 0; k < kernel; ++k) {
      if (row + k < before || row + k - before >= input.rows) continue;
      const std::size_t pixel = (row + k - before) * input.columns + column + skipped - before;
      visit((k * kernel + skipped) * input.channels, pixel * input.channels,
            count * input.channels);
    }
  }

  /// Runs are short: vectors of four, the last one over values that were copied before.
  template <class Real>
  static void copy(const Real* from, std::size_t count, Real* to) {
    constexpr std::size_t four = 4;
    if (count >= 32) return static_cast<void>(std::memcpy(to, from, count * sizeof(Real)));
    if (count < four) {
      for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
      return;
    }
    for (std::size_t i = 0; i + four < count; i += four) {
      std::memcpy(to + i, from + i, four * sizeof(Real));
    }
    std::memcpy(to + count - four, from + count - four, four * sizeof(Real));
  }

  template <class Real>
  static void add(const Real* from, std::size_t count, Real* to) {
    for (std::size_t i = 0; i < count; ++i) to[i] = to[i] + from[i];
  }
};

}  // namespace lockstep::nn
