#include "lockstep/numerics/strict.hpp"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/aligned.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/numerics/machine.hpp"
#include "lockstep/numerics/strict_math.hpp"
#include "lockstep/numerics/threads.hpp"
#include "tree_definition.hpp"

using namespace lockstep;

namespace {

using Bits = std::vector<std::uint32_t>;

Bits bits(std::span<const float> values) {
  Bits result;
  for (const float value : values) result.push_back(std::bit_cast<std::uint32_t>(value));
  return result;
}

/// One NaN, and one zero.
float canonical(float a) {
  return a != a ? std::numeric_limits<float>::quiet_NaN() : a == 0 ? 0.0F : a;
}

/// One layer and one batch, and everything the products make of them.
struct Case {
  std::size_t rows, inputs, outputs, leaf;
  AlignedBuffer<float> x, w, bias, dz;
  Panels layout{inputs, outputs};
  AlignedBuffer<float> panels{layout.size()};
  Zeros zeros = Zeros::dense;

  Matrix<const float> xs() const { return {x.data(), rows, inputs}; }
  Matrix<const float> dzs() const { return {dz.data(), rows, outputs}; }
  PanelWeights weights() const { return {layout, panels.span()}; }

  std::vector<float> forward(const StrictProducts& p, Activation activation) const {
    return forward(p, activation, layout.columns());
  }
  /// Other columns are 7.
  std::vector<float> forward(const StrictProducts& p, Activation activation, Range columns) const {
    std::vector<float> y(rows * outputs, 7.0F);
    AlignedBuffer<float> room(p.forward_scratch(rows, inputs));
    p.forward(xs(), weights(), bias.span(), activation, {y.data(), rows, outputs}, columns,
              Output::overwrite, zeros, room.span());
    return y;
  }
  std::vector<float> input(const StrictProducts& p, Activation below) {
    return input(p, below, {0, round_to_unit(inputs)});
  }
  /// Other columns are 7.
  std::vector<float> input(const StrictProducts& p, Activation below, Range columns) {
    std::vector<float> dx(rows * inputs, 7.0F);
    AlignedBuffer<float> room(p.input_scratch(rows, outputs));
    p.backward_input(dzs(), weights(), xs(), below, {dx.data(), rows, inputs}, columns,
                     Output::overwrite, room.span());
    return dx;
  }
  std::vector<float> slice(const StrictProducts& p, Range slice) {
    AlignedBuffer<float> dw(slice.size());
    std::fill(dw.span().begin(), dw.span().end(), 7.0F);
    AlignedBuffer<float> room(p.weights_scratch(rows, outputs, leaf, slice.size()));
    std::fill(room.span().begin(), room.span().end(), std::numeric_limits<float>::quiet_NaN());
    p.backward_weights(xs(), dzs(), leaf, slice, dw.span(), zeros, room.span());
    return {dw.span().begin(), dw.span().end()};
  }
  std::vector<float> bias_slice(const StrictProducts& p, Range slice) {
    AlignedBuffer<float> db(slice.size());
    std::fill(db.span().begin(), db.span().end(), 7.0F);
    p.backward_bias(dzs(), leaf, slice, db.span());
    return {db.span().begin(), db.span().end()};
  }
};

enum class Values { ordinary, special };

void fill(std::span<float> values, std::mt19937& random, Values kind) {
  const float special[] = {0.0F,
                           -0.0F,
                           1e-40F,
                           -1e-45F,
                           3e38F,
                           -3e38F,
                           1e-38F,
                           std::numeric_limits<float>::infinity(),
                           -std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::quiet_NaN(),
                           -std::numeric_limits<float>::quiet_NaN()};
  for (float& value : values) {
    value = std::normal_distribution<float>()(random);
    if (random() % 3 == 0) value = 0;
    if (kind == Values::special && random() % 50 == 0) value = special[random() % 11];
    if (kind == Values::special && random() % 10 == 0) value *= 1e-38F;
  }
}

Case make_case(std::size_t rows, std::size_t inputs, std::size_t outputs, std::size_t leaf,
               unsigned seed, Values kind = Values::ordinary) {
  Case c{rows,
         inputs,
         outputs,
         leaf,
         AlignedBuffer<float>(rows * inputs),
         AlignedBuffer<float>(inputs * outputs),
         AlignedBuffer<float>(round_to_unit(outputs)),
         AlignedBuffer<float>(rows * outputs)};
  std::mt19937 random(seed);
  for (auto* buffer : {&c.x, &c.w, &c.dz}) fill(buffer->span(), random, kind);
  fill(c.bias.span().first(outputs), random, kind);
  to_panels({c.w.data(), inputs, outputs}, c.layout, c.panels.span());
  return c;
}

// The definition, written once more: logical matrices, and the tree by recursion.

std::vector<float> naive_forward(const Case& c, Activation activation) {
  std::vector<float> y;
  for (std::size_t i = 0; i < c.rows; ++i) {
    for (std::size_t j = 0; j < c.outputs; ++j) {
      float a = c.bias.data()[j];
      for (std::size_t k = 0; k < c.inputs; ++k) {
        a = std::fma(c.xs()(i, k), c.w.data()[k * c.outputs + j], a);
      }
      y.push_back(canonical(activation == Activation::relu && a < 0 ? 0 : a));
    }
  }
  return y;
}

std::vector<float> naive_input(const Case& c, Activation below) {
  std::vector<float> dx;
  for (std::size_t i = 0; i < c.rows; ++i) {
    for (std::size_t k = 0; k < c.inputs; ++k) {
      float a = 0;
      for (std::size_t j = 0; j < c.outputs; ++j) {
        a = std::fma(c.dzs()(i, j), c.w.data()[k * c.outputs + j], a);
      }
      dx.push_back(below == Activation::identity || c.xs()(i, k) > 0 ? canonical(a) : 0);
    }
  }
  return dx;
}

/// The tree over x[:, k] times dz[:, j]; over dz alone where k is beyond x.
float naive_sum(const Case& c, std::size_t k, std::size_t j) {
  if (c.rows == 0) return 0;
  return canonical(test::tree_sum(c.rows, c.leaf, [&](std::size_t first, std::size_t last) {
    float a = 0;
    for (std::size_t i = first; i < last; ++i) {
      a = k < c.inputs ? std::fma(c.xs()(i, k), c.dzs()(i, j), a) : a + c.dzs()(i, j);
    }
    return a;
  }));
}

std::vector<float> naive_weights(const Case& c) {
  std::vector<float> dw(c.layout.size());
  for (std::size_t k = 0; k < c.inputs; ++k) {
    for (std::size_t j = 0; j < c.outputs; ++j) dw[c.layout.index(k, j)] = naive_sum(c, k, j);
  }
  return dw;
}

std::vector<float> naive_bias(const Case& c) {
  std::vector<float> db(round_to_unit(c.outputs));
  for (std::size_t j = 0; j < c.outputs; ++j) db[j] = naive_sum(c, c.inputs, j);
  return db;
}

/// The case with inputs [first, last) alone, or with outputs [first, last).
Case with_inputs(const Case& c, Range part) {
  Case cut = make_case(c.rows, part.size(), c.outputs, c.leaf, 0);
  for (std::size_t i = 0; i < c.rows; ++i) {
    std::copy_n(c.x.data() + i * c.inputs + part.begin, part.size(),
                cut.x.data() + i * part.size());
  }
  std::copy_n(c.w.data() + part.begin * c.outputs, part.size() * c.outputs, cut.w.data());
  std::copy_n(c.bias.data(), c.outputs, cut.bias.data());
  to_panels({cut.w.data(), part.size(), c.outputs}, cut.layout, cut.panels.span());
  return cut;
}

Case with_outputs(const Case& c, Range part) {
  Case cut = make_case(c.rows, c.inputs, part.size(), c.leaf, 0);
  const auto copy = [&](const AlignedBuffer<float>& from, std::size_t rows, float* to) {
    for (std::size_t i = 0; i < rows; ++i) {
      std::copy_n(from.data() + i * c.outputs + part.begin, part.size(), to + i * part.size());
    }
  };
  copy(c.dz, c.rows, cut.dz.data());
  copy(c.w, c.inputs, cut.w.data());
  std::copy_n(c.x.data(), c.rows * c.inputs, cut.x.data());
  to_panels({cut.w.data(), c.inputs, part.size()}, cut.layout, cut.panels.span());
  return cut;
}

/// Every set of instructions of this processor; says which are missing.
std::vector<const StrictProducts*> all_products() {
  std::vector<const StrictProducts*> result;
  for (const Simd simd : {Simd::scalar, Simd::avx2, Simd::avx512, Simd::neon}) {
    if (has_simd(simd)) {
      result.push_back(&strict_products(simd));
    } else {
      WARN("SKIPPED: this processor has no " << simd_name(simd)
                                             << ", so its kernels are not tested");
      REQUIRE_THROWS_AS(strict_products(simd), ConfigError);
    }
  }
  return result;
}

void require_definition(Case& c) {
  INFO(c.rows << " rows, " << c.inputs << " -> " << c.outputs << ", leaves of " << c.leaf);
  const auto part_of = [](std::size_t width) -> Range {
    const std::size_t units = round_to_unit(width) / panel_unit;
    return {units / 3 * panel_unit, (units - units / 4) * panel_unit};
  };
  /// `values` in a part of the columns, and 7 in the others.
  const auto in_part = [&](std::vector<float> values, std::size_t width) {
    const Range columns = part_of(width);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i % width < columns.begin || i % width >= columns.end) values[i] = 7;
    }
    return bits(values);
  };
  const Bits dw = bits(naive_weights(c));
  const Bits db = bits(naive_bias(c));
  for (const StrictProducts* p : all_products()) {
    INFO("simd " << static_cast<int>(p->simd));
    for (const Activation a : {Activation::identity, Activation::relu}) {
      const auto y = naive_forward(c, a);
      REQUIRE((bits(c.forward(*p, a)) == bits(y)));
      REQUIRE((bits(c.forward(*p, a, part_of(c.outputs))) == in_part(y, c.outputs)));
      const auto dx = naive_input(c, a);
      REQUIRE((bits(c.input(*p, a)) == bits(dx)));
      REQUIRE((bits(c.input(*p, a, part_of(c.inputs))) == in_part(dx, c.inputs)));
    }
    REQUIRE((bits(c.slice(*p, c.layout.all())) == dw));
    REQUIRE((bits(c.bias_slice(*p, {0, c.bias.size()})) == db));
  }
}

}  // namespace

TEST_CASE("panels hold every element once and the rest is zero", "[strict]") {
  const std::size_t inputs = GENERATE(1, 3, 17);
  const std::size_t outputs = GENERATE(1, 10, 16, 63, 64, 65, 130, 192);
  const Case c = make_case(1, inputs, outputs, 1, 1);
  std::vector<float> back(inputs * outputs);
  from_panels(c.weights(), {back.data(), inputs, outputs});
  REQUIRE((bits(back) == bits(c.w.span())));
  REQUIRE(c.layout.size() % 16 == 0);
  std::size_t used = 0;
  for (const float value : c.panels.span()) used += value != 0 ? 1 : 0;
  std::size_t given = 0;
  for (const float value : c.w.span()) given += value != 0 ? 1 : 0;
  REQUIRE(used == given);
}

TEST_CASE("all instructions give the bits of the definition", "[strict]") {
  const auto kind = GENERATE(Values::ordinary, Values::special);
  for (const std::size_t rows : {0, 1, 2, 5, 15, 16, 17, 63, 64, 65, 100}) {
    std::mt19937 random(static_cast<unsigned>(rows));
    const std::size_t inputs = 1 + random() % 70;
    const std::size_t outputs = 1 + random() % 150;
    Case c = make_case(rows, inputs, outputs, 1 + random() % 20, 3, kind);
    require_definition(c);
  }
}

TEST_CASE("every width of a panel and every height of a tile", "[strict]") {
  for (std::size_t outputs = 1; outputs <= 130; outputs += 7) {
    Case c = make_case(9, 13, outputs, 2, 4, Values::special);
    require_definition(c);
  }
  for (std::size_t inputs = 1; inputs <= 50; ++inputs) {
    Case c = make_case(inputs % 21, inputs, 40, 3, 5);
    require_definition(c);
  }
}

TEST_CASE("dX of few outputs", "[strict]") {
  for (const std::size_t outputs : {1, 10, 16, 17}) {
    for (const std::size_t inputs : {1, 64, 65, 130}) {
      Case c = make_case(15, inputs, outputs, 4, 18, Values::special);
      require_definition(c);
    }
  }
}

TEST_CASE("leaves of every size, with a short last one", "[strict]") {
  for (std::size_t leaf = 1; leaf <= 20; ++leaf) {
    Case c = make_case(6 * leaf + leaf / 2 + 1, 7, 20, leaf, 6, Values::special);
    require_definition(c);
  }
}

TEST_CASE("more rows than a section holds, and more inputs than a strip", "[strict]") {
  for (const std::size_t leaf : {1, 7, 16, 43, 200}) {
    Case c = make_case(1000, 9, 17, leaf, 7);
    require_definition(c);
  }
  // Several sections, of which some wait; the last one short, or a single row. Leaves of several
  // sections, and of more rows than there are.
  constexpr std::size_t longest = std::numeric_limits<std::size_t>::max();
  for (const auto& [rows, leaf] : {std::pair<std::size_t, std::size_t>{1025, 16},
                                   {1537, 100},
                                   {2300, 600},
                                   {4600, 513},
                                   {1100, 1100},
                                   {1100, longest / 4 + 1},
                                   {600, longest},
                                   {4 * 512, 16},
                                   {7 * 512 + 40, 1}}) {
    Case c = make_case(rows, 20, 40, leaf, 15);
    require_definition(c);
    c.zeros = Zeros::automatic;
    require_definition(c);
  }
  Case wide = make_case(20, 500, 70, 2, 8);
  require_definition(wide);
  Case both = make_case(300, 230, 5, 16, 9);
  require_definition(both);
  // Masks of more lanes than a byte counts.
  for (const std::size_t wider : {256, 257, 300, 515}) {
    Case outputs = make_case(5, 20, wider, 2, 10);
    require_definition(outputs);
    Case inputs = make_case(5, wider, 20, 2, 10);
    require_definition(inputs);
  }
}

TEST_CASE("dW has the same bits when it is cut for other caches", "[strict]") {
  Case c = make_case(600, 150, 80, 3, 17);
  // Blocks of zeros, which masks of a strip name; other inputs have single ones, and higher tiles.
  for (std::size_t i = 0; i < c.x.size(); ++i) {
    const std::size_t k = i % c.inputs;
    if (k < 90 && i / c.inputs / 9 % 2 != k / 5 % 3) c.x.data()[i] = 0;
  }
  const CacheSizes found = cache_sizes();
  for (const std::size_t leaf : {1, 3, 150}) {  // the longest is cut by the smallest caches
    c.leaf = leaf;
    const Bits dw = bits(naive_weights(c));
    for (const CacheSizes caches : {CacheSizes{1 << 10, 1 << 10}, CacheSizes{32 << 10, 512 << 10},
                                    CacheSizes{1 << 20, 1 << 26}}) {
      set_cache_sizes(caches);
      for (const StrictProducts* p : all_products()) {
        INFO(simd_name(p->simd) << ", caches of " << caches.first << " and " << caches.second
                                << ", leaves of " << leaf);
        for (const Zeros zeros : {Zeros::dense, Zeros::automatic}) {
          c.zeros = zeros;
          CHECK((bits(c.slice(*p, c.layout.all())) == dw));
        }
      }
    }
  }
  set_cache_sizes(found);
}

TEST_CASE("terms that are zero may be left out if the other factor is finite", "[strict]") {
  const float extreme[] = {0.0F, -0.0F, 1e-40F, -1e-45F, 3e38F, -3e38F, 1e-38F, -1e-30F};
  std::mt19937 random(15);
  for (const unsigned percent : {0U, 3U, 20U, 50U, 80U, 97U, 100U}) {  // of x that is not zero
    for (const auto& [rows, inputs, outputs] : {std::array<std::size_t, 3>{1, 40, 260},
                                                {17, 61, 300},
                                                {64, 24, 70},
                                                {401, 29, 256},
                                                {150, 200, 40}}) {
      const std::size_t leaf = 1 + random() % 40;
      INFO(percent << " %, " << rows << " rows, " << inputs << " -> " << outputs << ", leaves of "
                   << leaf);
      Case c = make_case(rows, inputs, outputs, leaf, 16);
      for (auto* buffer : {&c.x, &c.w, &c.dz, &c.bias}) {
        for (float& value : buffer->span()) {
          if (random() % 10 == 0) value = extreme[random() % std::size(extreme)];
        }
      }
      std::fill(c.bias.span().begin() + static_cast<std::ptrdiff_t>(outputs), c.bias.span().end(),
                0.0F);
      to_panels({c.w.data(), inputs, outputs}, c.layout, c.panels.span());
      bool zero = false;
      for (float& value : c.x.span()) {  // zeros in runs, as in images
        if (random() % 8 == 0) zero = random() % 100 >= percent;
        if (zero) value = random() % 2 == 0 ? 0.0F : -0.0F;
      }
      c.zeros = Zeros::dense;
      const Bits y = bits(c.forward(scalar_products(), Activation::relu));
      const Bits dw = bits(c.slice(scalar_products(), c.layout.all()));
      const Range part = {16 * (c.layout.size() / 48), 16 * (c.layout.size() / 20)};
      c.zeros = Zeros::automatic;
      for (const StrictProducts* p : all_products()) {
        INFO("simd " << static_cast<int>(p->simd));
        REQUIRE((bits(c.forward(*p, Activation::relu)) == y));
        REQUIRE((bits(c.slice(*p, c.layout.all())) == dw));
        REQUIRE(
            (bits(c.slice(*p, part)) == Bits(dw.begin() + static_cast<std::ptrdiff_t>(part.begin),
                                             dw.begin() + static_cast<std::ptrdiff_t>(part.end))));
      }
    }
  }
}

TEST_CASE("a row alone has the bits that it has in a batch", "[strict]") {
  Case c = make_case(77, 50, 70, 4, 10);
  for (const StrictProducts* p : all_products()) {
    const auto y = c.forward(*p, Activation::relu);
    const auto dx = c.input(*p, Activation::relu);
    AlignedBuffer<float> lists(p->forward_scratch(1, c.inputs));
    AlignedBuffer<float> room(p->input_scratch(1, c.outputs));
    for (std::size_t i = 0; i < c.rows; ++i) {
      std::vector<float> one(c.outputs);
      p->forward({c.x.data() + i * c.inputs, 1, c.inputs}, c.weights(), c.bias.span(),
                 Activation::relu, {one.data(), 1, c.outputs}, c.layout.columns(),
                 Output::overwrite, c.zeros, lists.span());
      REQUIRE((bits(one) == bits(std::span(y).subspan(i * c.outputs, c.outputs))));
      std::vector<float> back(c.inputs);
      p->backward_input({c.dz.data() + i * c.outputs, 1, c.outputs}, c.weights(),
                        {c.x.data() + i * c.inputs, 1, c.inputs}, Activation::relu,
                        {back.data(), 1, c.inputs}, {0, round_to_unit(c.inputs)}, Output::overwrite,
                        room.span());
      REQUIRE((bits(back) == bits(std::span(dx).subspan(i * c.inputs, c.inputs))));
    }
  }
}

TEST_CASE("a chain that pauses anywhere is the chain that never stopped", "[strict]") {
  std::mt19937 random(13);
  for (const std::size_t rows : {0, 1, 7, 16, 65}) {
    const std::size_t inputs = 2 + random() % 90;
    const std::size_t outputs = 2 + random() % 150;
    Case c = make_case(rows, inputs, outputs, 4, 14, Values::special);
    const std::size_t input = 1 + random() % (inputs - 1);
    const std::size_t output = 1 + random() % (outputs - 1);
    INFO(rows << " rows, " << inputs << " -> " << outputs << ", cut at " << input << ", "
              << output);
    const Case low_k = with_inputs(c, {0, input});
    const Case high_k = with_inputs(c, {input, inputs});
    Case low_j = with_outputs(c, {0, output});
    Case high_j = with_outputs(c, {output, outputs});
    for (const StrictProducts* p : all_products()) {
      AlignedBuffer<float> lists(p->forward_scratch(rows, high_k.inputs));
      AlignedBuffer<float> room(p->input_scratch(rows, high_j.outputs));
      for (const Activation a : {Activation::identity, Activation::relu}) {
        auto y = low_k.forward(*p, Activation::identity);
        p->forward(high_k.xs(), high_k.weights(), {}, a, {y.data(), rows, outputs},
                   high_k.layout.columns(), Output::accumulate, high_k.zeros, lists.span());
        REQUIRE((bits(y) == bits(c.forward(*p, a))));
        auto dx = low_j.input(*p, Activation::identity);
        p->backward_input(high_j.dzs(), high_j.weights(), high_j.xs(), a, {dx.data(), rows, inputs},
                          {0, round_to_unit(inputs)}, Output::accumulate, room.span());
        REQUIRE((bits(dx) == bits(c.input(*p, a))));
      }
    }
  }
}

TEST_CASE("parts of a product on several threads are those of the whole", "[strict]") {
  const Case c = make_case(60, 300, 333, 4, 7, Values::special);
  const auto products = make_strict_products(Simd::automatic);
  const LayerWeights<float> w{c.inputs, c.outputs, c.panels.span(), c.bias.span()};
  std::vector<float> y(c.rows * c.outputs);
  std::vector<float> dx(c.rows * c.inputs);
  for (const int threads : {1, 3}) {
    set_product_threads(threads);
    const auto compute = [&](const Part& part) {
      products->forward(c.xs(), w, Activation::relu, {y.data(), c.rows, c.outputs}, part);
      products->backward_input(c.dzs(), w, c.xs(), Activation::relu, {dx.data(), c.rows, c.inputs},
                               part);
    };
    compute({});
    const auto whole_y = bits(std::exchange(y, std::vector<float>(y.size())));
    const auto whole_dx = bits(std::exchange(dx, std::vector<float>(dx.size())));
    for (const Range columns : {Range{0, 112}, {112, 128}, {128, 288}, {288, 1000}}) {
      compute({.columns = columns});
    }
    CHECK((bits(y) == whole_y));
    CHECK((bits(dx) == whole_dx));
  }
  set_product_threads(1);
  for (const Range columns : {Range{8, 16}, {0, 20}, {32, 16}}) {
    CHECK_THROWS_AS(products->forward(c.xs(), w, Activation::relu, {y.data(), c.rows, c.outputs},
                                      {.columns = columns}),
                    std::invalid_argument);
  }
}

TEST_CASE("slices glued together are the whole", "[strict]") {
  const std::size_t rows = GENERATE(150, 700);
  Case c = make_case(rows, 30, 150, 5, 11);
  std::mt19937 random(12);
  for (const StrictProducts* p : all_products()) {
    const Bits whole = bits(c.slice(*p, c.layout.all()));
    const Bits bias = bits(c.bias_slice(*p, {0, c.bias.size()}));
    for (int round = 0; round < 5; ++round) {
      Bits glued;
      for (std::size_t first = 0; first < c.layout.size();) {
        const std::size_t last = std::min(c.layout.size(), first + 16 * (random() % 90));
        const Bits piece = bits(c.slice(*p, {first, last}));
        glued.insert(glued.end(), piece.begin(), piece.end());
        first = last;
      }
      REQUIRE((glued == whole));
      const std::size_t middle = 16 * (random() % (c.bias.size() / 16 + 1));
      Bits both = bits(c.bias_slice(*p, {0, middle}));
      const Bits rest = bits(c.bias_slice(*p, {middle, c.bias.size()}));
      both.insert(both.end(), rest.begin(), rest.end());
      REQUIRE((both == bias));
    }
  }
}

TEST_CASE("threads share db", "[strict]") {
  auto c = make_case(1500, 1, 300, 16, 8, Values::special);
  const Range all = {0, round_to_unit(c.outputs)};
  REQUIRE(c.rows * all.size() > min_shared_operations);
  const auto products = make_strict_products(Simd::automatic);
  for (const Range slice : {all, Range{16, 304}}) {
    std::vector<float> db(slice.size());
    set_product_threads(3);
    products->backward_bias(c.dzs(), c.leaf, slice, db);
    set_product_threads(1);
    REQUIRE((bits(db) == bits(c.bias_slice(strict_products(Simd::scalar), slice))));
  }
}

TEST_CASE("the tree over leaves is the sum of its subtrees", "[strict]") {
  Case c = make_case(8 * 3 - 1, 12, 40, 3, 13);
  for (const StrictProducts* p : all_products()) {
    AlignedBuffer<float> room(p->weights_scratch(c.rows, c.outputs, c.leaf, c.layout.size()));
    const auto part = [&](std::size_t first, std::size_t last) {
      AlignedBuffer<float> dw(c.layout.size());
      p->backward_weights({c.x.data() + first * c.inputs, last - first, c.inputs},
                          {c.dz.data() + first * c.outputs, last - first, c.outputs}, c.leaf,
                          c.layout.all(), dw.span(), c.zeros, room.span());
      return dw;
    };
    const auto left = part(0, 12);
    const auto right = part(12, c.rows);
    std::vector<float> sum(c.layout.size());
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = left.data()[i] + right.data()[i];
    REQUIRE((bits(sum) == bits(c.slice(*p, c.layout.all()))));
  }
}

TEST_CASE("automatic takes the widest instructions", "[strict]") {
  const Simd best = has_simd(Simd::avx512) ? Simd::avx512
                    : has_simd(Simd::avx2) ? Simd::avx2
                    : has_simd(Simd::neon) ? Simd::neon
                                           : Simd::scalar;
  REQUIRE(strict_products(Simd::automatic).simd == best);
  REQUIRE(has_simd(Simd::automatic));
}

namespace {

/// How far `got` is from `exact`, in units of the last place of a float near it.
double ulps(float got, long double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  const long double unit = std::ldexp(1.0L, std::max(exponent - 24, -149));
  return static_cast<double>(std::abs((static_cast<long double>(got) - exact) / unit));
}

}  // namespace

TEST_CASE("exponential and logarithm are rounded to the nearest", "[strict]") {
  std::mt19937 random(14);
  double worst_exp = 0;
  double worst_log = 0;
  for (int i = 0; i < 300000; ++i) {
    const float x = std::uniform_real_distribution<float>(-103.0F, 88.7F)(random);
    worst_exp = std::max(worst_exp, ulps(strict_exp(x), std::exp(static_cast<long double>(x))));
    const auto any = std::bit_cast<float>(static_cast<std::uint32_t>(random()) & 0x7fffffffU);
    for (const float y : {any, 1 + x * 1e-3F, 1 + x * 1e-6F}) {
      if (!std::isfinite(y) || y <= 0) continue;
      worst_log = std::max(worst_log, ulps(strict_log(y), std::log(static_cast<long double>(y))));
    }
  }
  CHECK(worst_exp <= 0.51);
  CHECK(worst_log <= 0.51);
}

TEST_CASE("exponential and logarithm at the edges", "[strict]") {
  using Float = std::numeric_limits<float>;
  const float infinity = Float::infinity();
  const auto same = [](float a, float b) { return bits({{a}}) == bits({{b}}); };
  CHECK(same(strict_exp(0.0F), 1.0F));
  CHECK(same(strict_exp(-0.0F), 1.0F));
  CHECK(same(strict_exp(1e-45F), 1.0F));
  CHECK(same(strict_exp(infinity), infinity));
  CHECK(same(strict_exp(-infinity), 0.0F));
  CHECK(same(strict_exp(-Float::quiet_NaN()), Float::quiet_NaN()));
  CHECK(same(strict_exp(88.7228F), std::exp(88.7228F)));
  CHECK(same(strict_exp(88.7229F), infinity));
  CHECK(same(strict_exp(-103.9F), Float::denorm_min()));
  CHECK(same(strict_exp(-104.0F), 0.0F));
  CHECK(same(strict_log(1.0F), 0.0F));
  CHECK(same(strict_log(0.0F), -infinity));
  CHECK(same(strict_log(-0.0F), -infinity));
  CHECK(same(strict_log(infinity), infinity));
  CHECK(same(strict_log(-1.0F), Float::quiet_NaN()));
  CHECK(same(strict_log(-infinity), Float::quiet_NaN()));
  CHECK(same(strict_log(-Float::quiet_NaN()), Float::quiet_NaN()));
  CHECK(same(strict_log(Float::denorm_min()), -103.278929F));
  CHECK(same(strict_log(Float::max()), 88.7228394F));
}

TEST_CASE("many exponentials at once have the bits of each", "[strict]") {
  std::mt19937 random(15);
  std::vector<float> values = {0.0F, -0.0F, 88.7228F, 88.7229F, -103.9F, -104.0F, 1e30F, -1e30F};
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {infinity, -infinity, std::nanf(""), -std::nanf("")}) values.push_back(x);
  for (const float limit : {ExpRange::least, ExpRange::greatest}) {
    for (const float to : {-infinity, infinity}) values.push_back(std::nextafter(limit, to));
    values.push_back(limit);
  }
  for (int i = 0; i < 100000; ++i) {
    values.push_back(std::uniform_real_distribution<float>(-111.0F, 101.0F)(random));
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
    // Near a change of the exponent of the result, where the quotient is rounded.
    const auto half = static_cast<float>(static_cast<int>(random() % 300) - 160) + 0.5F;
    values.push_back(std::nextafter(half * 0.69314718F, random() % 2 == 0 ? -200.0F : 200.0F));
  }
  auto together = values;
  strict_exp(together);
  for (float& x : values) x = strict_exp(x);
  REQUIRE((bits(together) == bits(values)));
  for (std::size_t count = 0; count < 40; ++count) {
    std::vector<float> some(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count));
    auto expected = some;
    for (float& x : expected) x = strict_exp(x);
    some.push_back(7);
    strict_exp(std::span(some).first(count));
    expected.push_back(7);
    REQUIRE((bits(some) == bits(expected)));
  }
}
