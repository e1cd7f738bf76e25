// The windows of a convolution as rows of a matrix, and their sum back into images.
#pragma once

#include "lib/nn/layer.hpp"

namespace lockstep::nn {

/// kernel x kernel windows around or inside every pixel of `input`; `output` has one pixel for
/// each.
struct Windows {
  Extent input;
  Extent output;
  std::size_t kernel = 1;
  std::size_t before = 0;  ///< zeros before the first row and column

  /// Values of a window: row, column, channel.
  std::size_t size() const noexcept { return kernel * kernel * input.channels; }

  /// Every image of x [B, input.size()] as output.positions() rows of `windows`; zero where a
  /// window reaches beyond the image.
  template <class Real>
  void gather(Matrix<const Real> x, Matrix<Real> windows) const {
    Real* out = windows.data;
    for_each_run(x.rows,
                 [&](std::size_t image, std::size_t first, std::size_t skipped, std::size_t count) {
                   const std::size_t width = kernel * input.channels;
                   const Real* in = x.data + image * x.cols + first;
                   for (std::size_t i = 0; i < skipped; ++i) out[i] = 0;
                   for (std::size_t i = 0; i < count; ++i) out[skipped + i] = in[i];
                   for (std::size_t i = skipped + count; i < width; ++i) out[i] = 0;
                   out += width;
                 });
  }

  /// Sets dx [B, input.size()] to the sums of `windows` over the windows that hold each pixel, in
  /// the order of the windows.
  template <class Real>
  void scatter(Matrix<const Real> windows, Matrix<Real> dx) const {
    std::fill(dx.flat().begin(), dx.flat().end(), Real{0});
    const Real* in = windows.data;
    for_each_run(dx.rows,
                 [&](std::size_t image, std::size_t first, std::size_t skipped, std::size_t count) {
                   Real* out = dx.data + image * dx.cols + first;
                   for (std::size_t i = 0; i < count; ++i) out[i] = out[i] + in[skipped + i];
                   in += kernel * input.channels;
                 });
  }

 private:
  /// Calls visit(image, first, skipped, count) for every row of every window in order: after
  /// `skipped` zeros it is the `count` values of the image from `first` on, then zeros.
  template <class Visit>
  void for_each_run(std::size_t images, Visit visit) const {
    for (std::size_t image = 0; image < images; ++image) {
      for (std::size_t p = 0; p < output.positions(); ++p) {
        const std::size_t column = p % output.columns;  // of the window, counted with the padding
        const std::size_t skipped = column < before ? before - column : 0;
        const std::size_t end = std::min(column + kernel, input.columns + before);
        const std::size_t count = end > column + skipped ? end - column - skipped : 0;
        for (std::size_t k = 0; k < kernel; ++k) {
          const std::size_t row = p / output.columns + k;
          const bool inside = row >= before && row - before < input.rows && count > 0;
          const std::size_t first =
              inside ? (row - before) * input.columns + column + skipped - before : 0;
          visit(image, first * input.channels, inside ? skipped * input.channels : 0,
                inside ? count * input.channels : 0);
        }
      }
    }
  }
};

}  // namespace lockstep::nn
