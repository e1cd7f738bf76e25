#include "lockstep/train/plot.hpp"

#include "lockstep/base/errors.hpp"

#ifdef LOCKSTEP_CAIRO
#include <cairo-svg.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "lockstep/base/files.hpp"
#include "lockstep/base/text.hpp"
#endif

namespace lockstep::train {

#ifndef LOCKSTEP_CAIRO

void require_drawable(const std::filesystem::path& file) {
  throw ConfigError(file.string() + ": cannot be drawn: this build has no cairo",
                    "install its development files (libcairo2-dev), and build again");
}

void draw(std::span<const Panel> /*panels*/, const std::filesystem::path& file) {
  require_drawable(file);
}

void plot(std::span<const History> /*histories*/, const std::filesystem::path& file) {
  require_drawable(file);
}

#else

namespace {

struct Color {
  double red, green, blue;
};

// Of the color-blind safe palette by Okabe and Ito (2008).
constexpr std::array<Color, 7> palette = {{{0.000, 0.447, 0.698},
                                           {0.835, 0.369, 0.000},
                                           {0.000, 0.620, 0.451},
                                           {0.800, 0.475, 0.655},
                                           {0.902, 0.624, 0.000},
                                           {0.337, 0.706, 0.914},
                                           {0.000, 0.000, 0.000}}};

const Color& color_of(const Curve& curve) { return palette[curve.color % palette.size()]; }

/// The end points of an axis, which are ticks, and the distance between ticks.
struct Axis {
  double first = 0;
  double last = 1;
  double step = 1;
};

/// Ticks at multiples of 1, 2 or 5 times a power of ten, about `count` of them, around the values,
/// as far as ticks and steps are finite.
Axis axis_of(double least, double greatest, double count, double smallest_step) {
  constexpr double most = 1e300;
  least = std::clamp(least, -most, most);
  greatest = std::clamp(greatest, -most, most);
  const double width = greatest > least ? greatest - least : std::max(std::abs(least), 1.0) * 0.1;
  const double power = std::pow(10, std::floor(std::log10(width / count)));
  double step = 10 * power;
  for (const double multiple : {1.0, 2.0, 5.0}) {
    if (width / (multiple * power) <= count) {
      step = multiple * power;
      break;
    }
  }
  step = std::max(step, smallest_step);
  Axis axis = {std::floor(least / step) * step, std::ceil(greatest / step) * step, step};
  if (axis.last <= axis.first) axis.last = axis.first + step;
  return axis;
}

/// All powers of ten around the values, which are greater than 0; ends and step are exponents.
Axis logarithmic_axis(double least, double greatest) {
  Axis axis = {std::floor(std::log10(least)), std::ceil(std::log10(greatest)), 1};
  if (axis.last <= axis.first) axis.last = axis.first + 1;
  return axis;
}

/// In decimals; with an exponent where that is long. Ticks have different texts.
std::string tick_text(double value, double step) {
  constexpr std::size_t long_text = 8;
  const auto exponent = [](double number) {
    return static_cast<int>(std::floor(std::log10(number) + 1e-9));
  };
  const int decimals = std::max(0, -exponent(step));
  std::string text = with_decimals(value + 0.0, decimals);
  if (value == 0 || text.size() < long_text) return decimals < 9 ? text : "0";
  const int digits = std::clamp(exponent(std::abs(value)) - exponent(step) + 1, 1, 17);
  std::array<char, 32> short_text{};
  std::snprintf(short_text.data(), short_text.size(), "%.*g", digits, value);
  return short_text.data();
}

/// Draws in points, with the origin at the top left.
class Canvas {
 public:
  static constexpr double width = 960;
  static constexpr double height = 360;

  explicit Canvas(cairo_surface_t* surface)
      : surface_(surface, cairo_surface_destroy), context_(cairo_create(surface), cairo_destroy) {
    cairo_select_font_face(get(), "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_line_join(get(), CAIRO_LINE_JOIN_ROUND);
    cairo_set_source_rgb(get(), 1, 1, 1);
    cairo_paint(get());
  }

  cairo_t* get() const noexcept { return context_.get(); }
  cairo_surface_t* surface() const noexcept { return surface_.get(); }

  void set(const Color& color) const {
    cairo_set_source_rgb(get(), color.red, color.green, color.blue);
  }

  void line(double x1, double y1, double x2, double y2, double thickness) const {
    cairo_set_line_width(get(), thickness);
    cairo_move_to(get(), x1, y1);
    cairo_line_to(get(), x2, y2);
    cairo_stroke(get());
  }

  void dot(double x, double y, double radius) const {
    cairo_arc(get(), x, y, radius, 0, 2 * M_PI);
    cairo_fill(get());
  }

  void dashes(bool are_on) const {
    constexpr std::array<double, 2> pattern = {5, 3};
    cairo_set_dash(get(), pattern.data(), are_on ? 2 : 0, 0);
  }

  double text_width(const std::string& text, double size) const {
    cairo_text_extents_t extents;
    cairo_set_font_size(get(), size);
    cairo_text_extents(get(), text.c_str(), &extents);
    return extents.x_advance;
  }

  /// `align`: the share of the text's width that lies to the left of x.
  void text(double x, double y, const std::string& text, double size, double align) const {
    cairo_move_to(get(), x - align * text_width(text, size), y);
    cairo_show_text(get(), text.c_str());
    cairo_new_path(get());
  }

 private:
  std::unique_ptr<cairo_surface_t, decltype(&cairo_surface_destroy)> surface_;
  std::unique_ptr<cairo_t, decltype(&cairo_destroy)> context_;
};

constexpr Color ink = {0.2, 0.2, 0.2};
constexpr Color grid = {0.88, 0.88, 0.88};
constexpr double font_size = 11;
constexpr double point_radius = 4.5;  // of points without a line

/// One panel in the rectangle that its axes enclose.
class PanelDrawing {
 public:
  PanelDrawing(const Canvas& canvas, const Panel& panel, double left, double right)
      : canvas_(canvas), panel_(panel), left_(left), right_(right) {
    double least = INFINITY;
    double greatest = -INFINITY;
    double first = INFINITY;
    double last = -INFINITY;
    for (const Curve& curve : panel.curves) {
      for (const auto& [x, y] : curve.points) {
        first = std::min(first, x);
        last = std::max(last, x);
        if (!std::isfinite(y)) continue;
        least = std::min(least, y);
        greatest = std::max(greatest, y);
      }
    }
    const double origin = panel.is_logarithmic ? 1 : 0;  // of the axes of a panel without points
    if (first > last) first = last = origin;
    if (least > greatest) least = greatest = origin;
    if (panel.is_logarithmic) {
      x_ = logarithmic_axis(first, last);
      y_ = logarithmic_axis(least, greatest);
    } else {
      x_ = axis_of(first, last, 12, 1);
      x_.first = first;  // epochs begin at 1, and the line at the axis
      x_.last = std::max(last, first + 1);
      y_ = axis_of(least, greatest, 6, 0);
    }
    double widest = 0;
    for_ticks(y_, [&](double value) {
      widest = std::max(widest, canvas_.text_width(label_of(y_, value), font_size));
    });
    constexpr double usual = 44;
    left_ += std::max(0.0, widest - usual);
  }

  void draw() const {
    draw_axes();
    cairo_save(canvas_.get());
    for (const Curve& curve : panel_.curves) draw_curve(curve);
    cairo_restore(canvas_.get());
    draw_legend();
  }

 private:
  static constexpr double top = 40;
  static constexpr double bottom = Canvas::height - 50;

  template <class Each>
  static void for_ticks(const Axis& axis, Each each) {
    const double last = std::round((axis.last - axis.first) / axis.step);
    for (double i = 0; i <= last; ++i) each(axis.first + i * axis.step);
  }

  double on_axis(double value) const { return panel_.is_logarithmic ? std::log10(value) : value; }
  std::string label_of(const Axis& axis, double at) const {
    return panel_.is_logarithmic ? tick_text(std::pow(10, at), std::min(1.0, std::pow(10, at)))
                                 : tick_text(at, axis.step);
  }
  double x_of(double x) const { return x_at(on_axis(x)); }
  double y_of(double y) const { return y_at(on_axis(y)); }
  double x_at(double x) const {
    return left_ + (x - x_.first) / (x_.last - x_.first) * (right_ - left_);
  }
  double y_at(double y) const {
    return bottom - (y - y_.first) / (y_.last - y_.first) * (bottom - top);
  }

  void draw_axes() const {
    for_ticks(y_, [&](double value) {
      canvas_.set(grid);
      canvas_.line(left_, y_at(value), right_, y_at(value), 0.8);
      canvas_.set(ink);
      canvas_.text(left_ - 7, y_at(value) + font_size * 0.36, label_of(y_, value), font_size, 1);
    });
    for (double value = std::ceil(x_.first / x_.step) * x_.step; value <= x_.last;
         value += x_.step) {
      canvas_.set(ink);
      canvas_.line(x_at(value), bottom, x_at(value), bottom + 4, 0.8);
      canvas_.text(x_at(value), bottom + 18, label_of(x_, value), font_size, 0.5);
    }
    canvas_.set(ink);
    canvas_.line(left_, bottom, right_, bottom, 0.8);
    canvas_.line(left_, top, left_, bottom, 0.8);
    canvas_.text((left_ + right_) / 2, top - 14, panel_.title, font_size + 2, 0.5);
    canvas_.text((left_ + right_) / 2, bottom + 36, panel_.x_name, font_size, 0.5);
    canvas_.text(left_ - 45, top - 14, panel_.y_name, font_size, 0);
  }

  void draw_line(const Curve& curve) const {
    canvas_.dashes(curve.is_dashed);
    cairo_set_line_width(canvas_.get(), 1.8);
    bool is_connected = false;
    for (const auto& [x, y] : curve.points) {
      if (!std::isfinite(y)) {
        is_connected = false;
        continue;
      }
      (is_connected ? cairo_line_to : cairo_move_to)(canvas_.get(), x_of(x), y_of(y));
      is_connected = true;
    }
    cairo_stroke(canvas_.get());
    canvas_.dashes(false);
  }

  void draw_curve(const Curve& curve) const {
    canvas_.set(color_of(curve));
    if (curve.is_line) draw_line(curve);
    if (curve.is_line && curve.points.size() > 30) return;  // whose marks would be a band
    const double radius = curve.is_line ? 2.6 : point_radius;
    for (const auto& [x, y] : curve.points) {
      if (std::isfinite(y)) canvas_.dot(x_of(x), y_of(y), radius);
    }
  }

  /// A rectangle of the canvas.
  struct Box {
    double left, top, width, height;

    bool contains(double x, double y, double margin) const {
      return x > left - margin && x < left + width + margin && y > top - margin &&
             y < top + height + margin;
    }
  };

  /// How much of the curves a legend in `box` would cover: points without a line count most, then
  /// parts of lines.
  double covered_by(const Box& box) const {
    constexpr double weight_of_point = 1000;
    constexpr int samples = 20;  // of the line between two points
    double covered = 0;
    for (const Curve& curve : panel_.curves) {
      for (std::size_t i = 0; i < curve.points.size(); ++i) {
        const auto [x, y] = curve.points[i];
        if (!std::isfinite(y)) continue;
        if (!curve.is_line) {
          if (box.contains(x_of(x), y_of(y), 2 * point_radius)) covered += weight_of_point;
          continue;
        }
        const auto [next_x, next_y] = curve.points[std::min(i + 1, curve.points.size() - 1)];
        if (!std::isfinite(next_y)) continue;
        for (int sample = 0; sample < samples; ++sample) {
          const double share = sample / static_cast<double>(samples);
          const double at_x = x_of(x) + share * (x_of(next_x) - x_of(x));
          const double at_y = y_of(y) + share * (y_of(next_y) - y_of(y));
          if (box.contains(at_x, at_y, 0)) covered += 1.0 / samples;
        }
      }
    }
    return covered;
  }

  /// The place at the top or the bottom where a legend covers least; of equal ones the rightmost.
  Box legend_box(double width, double height) const {
    constexpr double gap = 8;
    Box best = {};
    double least = INFINITY;
    const double first = left_ + gap;
    const double last = right_ - gap - width;
    for (const double share : {1.0, 0.75, 0.5, 0.25, 0.0}) {
      for (const double box_top : {top + gap, bottom - gap - height}) {
        const Box box = {first + share * (last - first), box_top, width, height};
        const double covered = covered_by(box);
        if (covered >= least) continue;
        least = covered;
        best = box;
      }
    }
    return best;
  }

  void draw_legend() const {
    double width = 0;
    for (const Curve& curve : panel_.curves) {
      width = std::max(width, canvas_.text_width(curve.name, font_size));
    }
    constexpr double row = 16;
    const auto named = std::count_if(panel_.curves.begin(), panel_.curves.end(),
                                     [](const Curve& curve) { return !curve.name.empty(); });
    const double rows = row * static_cast<double>(named);
    const Box box = legend_box(width + 46, rows + 6);
    cairo_set_source_rgba(canvas_.get(), 1, 1, 1, 0.8);
    cairo_rectangle(canvas_.get(), box.left, box.top, box.width, box.height);
    cairo_fill(canvas_.get());
    const double x = box.left + 6;
    double y = box.top + 4;
    for (const Curve& curve : panel_.curves) {
      if (curve.name.empty()) continue;
      canvas_.set(color_of(curve));
      if (curve.is_line) {
        canvas_.dashes(curve.is_dashed);
        canvas_.line(x, y + row / 2, x + 26, y + row / 2, 1.8);
        canvas_.dashes(false);
      } else {
        canvas_.dot(x + 13, y + row / 2, point_radius);
      }
      canvas_.set(ink);
      canvas_.text(x + 33, y + row / 2 + font_size * 0.36, curve.name, font_size, 0);
      y += row;
    }
  }

  const Canvas& canvas_;
  const Panel& panel_;
  double left_, right_;
  Axis x_, y_;
};

/// Loss or score, by epoch. Of several histories training and test alone, so that two lines of a
/// color are a history.
Panel panel_of(std::span<const History> histories, const std::string& title,
               double SetFigures::*figure) {
  const bool are_many = histories.size() > 1;
  const bool is_loss = figure == &SetFigures::loss;
  Panel panel = {.title = are_many ? title + " (dashed: training)" : title, .x_name = "epoch"};
  for (std::size_t i = 0; i < histories.size(); ++i) {
    // `value_of`: of an epoch; nullopt: it has none.
    const auto add = [&](const char* set, std::size_t color, bool is_dashed, auto value_of) {
      Curve curve = {.name = !are_many   ? set
                             : is_dashed ? ""
                                         : histories[i].name,
                     .color = color,
                     .is_dashed = is_dashed};
      for (const EpochReport& epoch : histories[i].epochs) {
        if (const std::optional<double> value = value_of(epoch)) {
          curve.points.emplace_back(static_cast<double>(epoch.epoch), *value);
        }
      }
      if (!curve.points.empty()) panel.curves.push_back(std::move(curve));
    };
    add("training", are_many ? i : 0, are_many,
        [&](const EpochReport& epoch) { return is_loss ? epoch.train_loss : epoch.train_score; });
    if (!are_many) {
      add("validation", 2, false, [&](const EpochReport& epoch) {
        return epoch.validation ? std::optional((*epoch.validation).*figure) : std::nullopt;
      });
    }
    add("test", are_many ? i : 1, false,
        [&](const EpochReport& epoch) { return epoch.test.*figure; });
  }
  return panel;
}

void draw_on(const Canvas& canvas, std::span<const Panel> panels) {
  constexpr double margin = 58;
  const double width = Canvas::width / static_cast<double>(panels.size());
  for (std::size_t i = 0; i < panels.size(); ++i) {
    const double left = static_cast<double>(i) * width;
    PanelDrawing(canvas, panels[i], left + margin, left + width - 16).draw();
  }
}

void require_histories(std::span<const History> histories) {
  if (histories.empty()) throw ConfigError("there is no history to plot", "give one");
  if (histories.size() > palette.size()) {
    throw ConfigError("a figure of " + std::to_string(histories.size()) + " histories: it has " +
                          std::to_string(palette.size()) + " colors",
                      "plot at most " + std::to_string(palette.size()) + " at a time");
  }
  for (const History& history : histories) {
    if (history.epochs.empty()) {
      throw ConfigError("history " + in_quotes(history.name) + " has no epoch",
                        "plot it when an epoch is complete");
    }
    if (history.epochs[0].is_regression == histories[0].epochs[0].is_regression) continue;
    throw ConfigError("the scores of " + in_quotes(histories[0].name) + " and " +
                          in_quotes(history.name) + " differ: one is a regression",
                      "plot them in files of their own");
  }
}

/// Receives what cairo writes; an exception must not pass through its C code.
cairo_status_t append(void* bytes, const unsigned char* data, unsigned int length) noexcept {
  try {
    static_cast<std::string*>(bytes)->append(reinterpret_cast<const char*>(data), length);
    return CAIRO_STATUS_SUCCESS;
  } catch (...) {
    return CAIRO_STATUS_NO_MEMORY;
  }
}

void require(cairo_status_t status, const std::filesystem::path& file) {
  if (status == CAIRO_STATUS_SUCCESS) return;
  throw OutputError(file.string() + ": cannot be drawn: " + cairo_status_to_string(status));
}

bool is_svg(const std::filesystem::path& file) {
  return lower_case(file.extension().string()) == ".svg";
}

std::string svg_of(std::span<const Panel> panels, const std::filesystem::path& file) {
  std::string bytes;
  const Canvas canvas(
      cairo_svg_surface_create_for_stream(append, &bytes, Canvas::width, Canvas::height));
  draw_on(canvas, panels);
  cairo_surface_finish(canvas.surface());
  require(cairo_surface_status(canvas.surface()), file);
  return bytes;
}

std::string png_of(std::span<const Panel> panels, const std::filesystem::path& file) {
  constexpr int scale = 2;
  auto* surface =
      cairo_image_surface_create(CAIRO_FORMAT_RGB24, scale * static_cast<int>(Canvas::width),
                                 scale * static_cast<int>(Canvas::height));
  cairo_surface_set_device_scale(surface, scale, scale);
  const Canvas canvas(surface);
  draw_on(canvas, panels);
  std::string bytes;
  require(cairo_surface_write_to_png_stream(surface, append, &bytes), file);
  return bytes;
}

}  // namespace

void require_drawable(const std::filesystem::path& file) {
  if (!is_svg(file) && lower_case(file.extension().string()) != ".png") {
    throw ConfigError(file.string() + ": is neither *.svg nor *.png", "end the name with one");
  }
  const NewFile can_be_created(replaceable(file));
}

void draw(std::span<const Panel> panels, const std::filesystem::path& file) {
  require_drawable(file);
  write_file(replaceable(file), is_svg(file) ? svg_of(panels, file) : png_of(panels, file));
}

void plot(std::span<const History> histories, const std::filesystem::path& file) {
  require_histories(histories);
  const bool is_regression = histories[0].epochs[0].is_regression;
  const std::array panels = {
      panel_of(histories, "Loss", &SetFigures::loss),
      panel_of(histories, is_regression ? "R2" : "Accuracy", &SetFigures::score)};
  draw(panels, file);
}

#endif

}  // namespace lockstep::train
