#include "lockstep/numerics/bf16.hpp"

#include <bit>
#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "lockstep/base/aligned.hpp"
#include "lockstep/numerics/amx.hpp"
#include "lockstep/numerics/threads.hpp"
#include "tests/support/amx_emulator.hpp"
#include "tree_definition.hpp"

using namespace lockstep;

namespace {

using Float = std::numeric_limits<float>;
using Values = std::vector<float>;

std::vector<std::uint32_t> bits(std::span<const float> values) {
  std::vector<std::uint32_t> result;
  for (const float value : values) result.push_back(std::bit_cast<std::uint32_t>(value));
  return result;
}

float canonical(float a) { return a != a ? Float::quiet_NaN() : a == 0 ? 0.0F : a; }

enum class Kind { ordinary, tiny, special };

/// tiny: sums about 2^-126, where rounding and flushing meet.
void fill(std::span<float> values, std::mt19937& random, Kind kind, bool is_factor) {
  const float special[] = {
      0.0F, -0.0F, 1e-40F, -1e-45F, 3.4e38F, -3e38F, 1e-38F, Float::infinity(), Float::quiet_NaN()};
  for (float& value : values) {
    value = std::normal_distribution<float>()(random);
    if (kind == Kind::tiny) {
      const int exponent = is_factor ? -63 - static_cast<int>(random() % 14) : -126;
      value = std::ldexp(random() % 2 == 0 ? 1.0F : value, exponent);
      if (random() % 2 == 0) value = -value;
    }
    if (random() % 3 == 0) value = 0;
    if (kind == Kind::special && random() % 50 == 0) value = special[random() % 9];
    if (kind == Kind::special && random() % 10 == 0) value *= 1e-38F;
    if (kind == Kind::special && random() % 30 == 0) value *= 1e30F;
  }
}

/// One layer and one batch.
struct Case {
  std::size_t rows, inputs, outputs, leaf;
  Panels layout{inputs, outputs};
  AlignedBuffer<float> x{rows * inputs}, w{layout.size()}, bias{round_to_unit(outputs)},
      dz{rows * outputs};

  Case(std::size_t batch, std::size_t in, std::size_t out, std::size_t leaf_rows, Kind kind,
       unsigned seed)
      : rows(batch), inputs(in), outputs(out), leaf(leaf_rows) {
    std::mt19937 random(seed);
    fill(x.span(), random, kind, true);
    fill(dz.span(), random, kind, true);
    fill(bias.span().first(outputs), random, kind, false);
    Values matrix(inputs * outputs);
    fill(matrix, random, kind, true);
    to_panels({matrix.data(), inputs, outputs}, layout, w.span());
  }

  float x_at(std::size_t i, std::size_t k) const { return x.data()[i * inputs + k]; }
  float dz_at(std::size_t i, std::size_t j) const { return dz.data()[i * outputs + j]; }
  float w_at(std::size_t k, std::size_t j) const { return w.data()[layout.index(k, j)]; }
};

/// What the products make of a case.
struct Results {
  Values y, relu_y, dx, relu_dx, dw, db;

  friend void require_same(const Results& a, const Results& b) {
    REQUIRE((bits(a.y) == bits(b.y)));
    REQUIRE((bits(a.relu_y) == bits(b.relu_y)));
    REQUIRE((bits(a.dx) == bits(b.dx)));
    REQUIRE((bits(a.relu_dx) == bits(b.relu_dx)));
    REQUIRE((bits(a.dw) == bits(b.dw)));
    REQUIRE((bits(a.db) == bits(b.db)));
  }
};

/// The definition: chain(a) of term(0), term(1) ...
template <class Terms, class Fma = decltype(&flushed_fma)>
float chain(float a, std::size_t count, const Terms& terms, const Fma& fma = flushed_fma) {
  for (std::size_t first = 0; first < count; first += 32) {
    float sums[2] = {0, 0};
    for (std::size_t t = first; t < std::min(count, first + 32); ++t) {
      const auto [u, v] = terms(t);
      float& sum = sums[(t - first) % 2];
      sum = fma(round_to_bf16(u), round_to_bf16(v), sum);
    }
    a = flushed_add(a, flushed_add(sums[0], sums[1]));
  }
  return a;
}

Results definition(const Case& c) {
  Results r;
  for (std::size_t i = 0; i < c.rows; ++i) {
    for (std::size_t j = 0; j < c.outputs; ++j) {
      r.y.push_back(canonical(chain(c.bias.data()[j], c.inputs, [&](std::size_t k) {
        return std::pair(c.x_at(i, k), c.w_at(k, j));
      })));
      r.relu_y.push_back(r.y.back() < 0 ? 0 : r.y.back());
    }
    for (std::size_t k = 0; k < c.inputs; ++k) {
      r.dx.push_back(canonical(chain(
          0, c.outputs, [&](std::size_t j) { return std::pair(c.dz_at(i, j), c.w_at(k, j)); })));
      r.relu_dx.push_back(c.x_at(i, k) > 0 ? r.dx.back() : 0);
    }
  }
  r.dw.resize(c.layout.size());
  r.db.resize(round_to_unit(c.outputs));
  if (c.rows == 0) return r;
  for (std::size_t j = 0; j < c.outputs; ++j) {  // dz is not rounded
    r.db[j] = canonical(test::tree_sum(c.rows, c.leaf, [&](std::size_t first, std::size_t last) {
      float sum = 0;
      for (std::size_t i = first; i < last; ++i) sum += c.dz_at(i, j);
      return sum;
    }));
  }
  for (std::size_t k = 0; k < c.inputs; ++k) {
    for (std::size_t j = 0; j < c.outputs; ++j) {
      const auto leaf_sum = [&](std::size_t first, std::size_t last) {
        return chain(0, last - first, [&](std::size_t i) {
          return std::pair(c.x_at(first + i, k), c.dz_at(first + i, j));
        });
      };
      r.dw[c.layout.index(k, j)] = canonical(test::tree_sum(c.rows, c.leaf, leaf_sum));
    }
  }
  return r;
}

Results computed(const Case& c, const Bf16Products& bf16, Zeros zeros) {
  const auto products = make_strict_products(bf16, zeros);
  const Matrix<const float> x{c.x.data(), c.rows, c.inputs};
  const Matrix<const float> dz{c.dz.data(), c.rows, c.outputs};
  const LayerWeights<float> w{c.inputs, c.outputs, c.w.span(), c.bias.span()};
  Results r;
  for (auto* y : {&r.y, &r.relu_y}) y->assign(c.rows * c.outputs, 7);
  for (auto* dx : {&r.dx, &r.relu_dx}) dx->assign(c.rows * c.inputs, 7);
  products->forward(x, w, Activation::identity, {r.y.data(), c.rows, c.outputs});
  products->backward_input(dz, w, x, Activation::identity, {r.dx.data(), c.rows, c.inputs});
  const auto in_two_parts = [](std::size_t columns, auto compute) {
    const std::size_t middle = columns / 2 / panel_unit * panel_unit;
    compute(Part{.columns = {0, middle}});
    compute(Part{.columns = {middle, columns + 3}});
  };
  in_two_parts(c.outputs, [&](const Part& part) {
    products->forward(x, w, Activation::relu, {r.relu_y.data(), c.rows, c.outputs}, part);
  });
  in_two_parts(c.inputs, [&](const Part& part) {
    products->backward_input(dz, w, x, Activation::relu, {r.relu_dx.data(), c.rows, c.inputs},
                             part);
  });
  AlignedBuffer<float> dw(c.layout.size());
  products->backward_weights(x, dz, c.leaf, c.layout.all(), dw.span());
  r.dw = {dw.span().begin(), dw.span().end()};
  r.db.assign(round_to_unit(c.outputs), 7);
  products->backward_bias(dz, c.leaf, {0, r.db.size()}, r.db);
  return r;
}

struct Instructions {
  std::string name;
  const Bf16Products& products;
};

std::vector<Instructions> instructions() {
  std::vector<Instructions> result;
  for (const Simd simd : {Simd::scalar, Simd::avx2, Simd::avx512, Simd::neon}) {
    if (has_simd(simd)) {
      result.push_back({simd_name(simd), bf16_products(simd)});
    } else {
      WARN("SKIPPED: this processor has no " << simd_name(simd)
                                             << ", so its kernels are not tested");
    }
  }
  static const bool amx = test::can_test_amx();
  if (amx) result.push_back({"AMX", *amx_products()});
  return result;
}

void require_definition(const Case& c) {
  INFO(c.rows << " rows, " << c.inputs << " -> " << c.outputs << ", leaves of " << c.leaf);
  const Results expected = definition(c);
  const auto all = instructions();
  const test::AmxEmulator amx;
  for (const auto& [name, products] : all) {
    for (const Zeros zeros : {Zeros::dense, Zeros::automatic}) {
      INFO(name << (zeros == Zeros::dense ? ", dense" : ""));
      require_same(computed(c, products, zeros), expected);
    }
  }
}

}  // namespace

TEST_CASE("rounding to bf16", "[bf16]") {
  const float infinity = Float::infinity();
  const std::pair<float, float> cases[] = {{1.0F, 1.0F},
                                           {0x1.01p0F, 0x1.00p0F},  // ties to even
                                           {0x1.03p0F, 0x1.04p0F},
                                           {0x1.010002p0F, 0x1.02p0F},
                                           {-0x1.03p0F, -0x1.04p0F},
                                           {0x1.ffp-126F, 0x1p-125F},
                                           {0x1p-126F, 0x1p-126F},
                                           {0x1.fffffcp-127F, 0.0F},  // although nearest to 2^-126
                                           {-1e-45F, 0.0F},
                                           {-0.0F, 0.0F},
                                           {0x1.fep127F, 0x1.fep127F},
                                           {0x1.fefffep127F, 0x1.fep127F},
                                           {Float::max(), infinity},
                                           {-infinity, -infinity},
                                           {-Float::quiet_NaN(), Float::quiet_NaN()},
                                           {std::bit_cast<float>(0x7f800001U), Float::quiet_NaN()}};
  Values values;
  Values expected;
  for (const auto& [value, rounded] : cases) {
    values.push_back(value);
    expected.push_back(rounded);
    CHECK((bits({{round_to_bf16(value)}}) == bits({{rounded}})));
  }
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
    expected.push_back(round_to_bf16(values.back()));
  }
  for (const auto& [name, products] : instructions()) {
    INFO(name);
    if (products.round == nullptr) continue;  // then other tests see how weights are rounded
    Values rounded(values.size());
    REQUIRE(!products.round(values, rounded));
    REQUIRE((bits(rounded) == bits(expected)));
    for (std::size_t place = 0; place < 40; ++place) {
      Values numbers(40, -0x1.fep127F);
      REQUIRE(products.round(numbers, std::span(rounded).first(40)));
      numbers[place] = place % 3 == 0 ? Float::max() : place % 3 == 1 ? -infinity : values[14];
      REQUIRE(!products.round(numbers, std::span(rounded).first(40)));
    }
  }
}

TEST_CASE("sums are flushed after they are rounded without limit", "[bf16]") {
  const float least = Float::min();  // 2^-126
  // IEEE 754 gives 2^-126 for all three, and a processor that flushes first 0.
  CHECK(flushed_fma(0x1p-75F, -0x1p-75F, least) == 0);      // less 2^-150
  CHECK(flushed_fma(0x1p-75F, -0x1.02p-76F, least) == 0);   // less 1.008 2^-151
  CHECK(flushed_fma(0x1p-75F, -0x1p-76F, least) == least);  // less 2^-151: a tie
  CHECK(flushed_fma(0x1p-75F, 0x1p-76F, -least) == -least);
  CHECK(flushed_fma(0x1p-126F, -0x1p-126F, least) == least);  // less 2^-252
  CHECK(flushed_fma(0x1.fep-64F, 0x1p-63F, 0.0F) == 0);
  CHECK(flushed_fma(0x1p-63F, 0x1p-63F, 0.0F) == least);
  CHECK(flushed_fma(0x1p-52F, 0x1p-50F, -0x1.fffffep-103F) == 0x1p-126F);
  CHECK(flushed_add(0x1.8p-126F, -least) == 0);
  CHECK(flushed_add(1e-40F, 0x1p-126F) == least);
  CHECK(flushed_fma(Float::max(), 2.0F, 0.0F) == Float::infinity());
  CHECK(std::isnan(flushed_fma(Float::infinity(), 0.0F, 1.0F)));
}

TEST_CASE("all instructions give the bits of the definition in bf16", "[bf16]") {
  const auto kind = GENERATE(Kind::ordinary, Kind::tiny, Kind::special);
  std::mt19937 random(2);
  for (const std::size_t rows : {0, 1, 2, 5, 16, 17, 33, 64, 65, 131, 300}) {
    require_definition({rows, 1 + random() % 140, 1 + random() % 150, 1 + random() % 70, kind,
                        static_cast<unsigned>(rows)});
  }
  require_definition({70, 100, 260, 16, kind, 3});  // wide enough for lists of columns
  require_definition({1030, 33, 40, 100, kind, 4});
  require_definition({40, 20, 1100, 4, kind, 6});  // dW of more parts than are summed together
  require_definition({140, 5, 20, 1, kind, 5});
}

namespace {

/// As ARM flushes: before a sum is rounded.
void forward_flushed_early(Matrix<const float> x, PanelWeights w, std::span<const float> bias,
                           Activation, Matrix<float> y, Range, Output, Zeros, std::span<float>) {
  const auto fma = [](float u, float v, float a) {
    const double exact = double{u} * v + a;  // it is exact about 2^-126
    return std::abs(exact) < double{Float::min()} ? 0.0F : flushed_fma(u, v, a);
  };
  for (std::size_t i = 0; i < y.rows; ++i) {
    for (std::size_t j = 0; j < y.cols; ++j) {
      const auto terms = [&](std::size_t k) {
        return std::pair(x.data[i * x.cols + k], w.values[w.layout.index(k, j)]);
      };
      y.data[i * y.cols + j] = canonical(chain(bias[j], x.cols, terms, fma));
    }
  }
}

}  // namespace

TEST_CASE("products that flush sums before they are rounded do not match bf16", "[bf16]") {
  const auto all = instructions();
  const test::AmxEmulator amx;
  for (const auto& [name, products] : all) {
    INFO(name);
    CHECK(match_definition(products));
    CHECK(!match_definition({products.round, scalar_products()}));  // no chunks, no flushing
  }
  Bf16Products early = scalar_bf16_products();
  early.round = nullptr;
  early.products.forward = forward_flushed_early;
  CHECK(!match_definition(early));
}

TEST_CASE("the peak of AMX is measured by whole tiles", "[bf16]") {
  if (!test::can_test_amx()) return;
  const test::AmxEmulator amx;
  CHECK(amx_operations() % (2 * 16 * 16 * 32) == 0);
  CHECK(amx_operations() > 0);
}

TEST_CASE("dW in bf16 has leaves of any length, slices, and scratch of any content", "[bf16]") {
  const auto all = instructions();
  const test::AmxEmulator amx;
  std::mt19937 random(8);
  for (const std::size_t leaf : {1, 3, 4, 5, 8, 16, 31, 32, 33, 64, 65, 600, 2000}) {
    // 1300 rows are several sections, whose nodes wait in scratch, or an open leaf does.
    const Case c(leaf == 4 || leaf >= 600 ? 1300 : 140, 37, 90, leaf, Kind::special, 9);
    const Values expected = definition(c).dw;
    for (const auto& [name, bf16] : all) {
      const StrictProducts& p = bf16.products;
      for (std::size_t first = 0, last = 0; first < c.layout.size(); first = last) {
        last = std::min(c.layout.size(), first + 16 * (1 + random() % 200));
        INFO(name << ", leaves of " << leaf << ", slice " << first << " to " << last);
        AlignedBuffer<float> dw(last - first);
        AlignedBuffer<float> room(p.weights_scratch(c.rows, c.outputs, leaf, last - first));
        std::fill(room.span().begin(), room.span().end(), Float::quiet_NaN());
        std::fill(dw.span().begin(), dw.span().end(), Float::quiet_NaN());
        p.backward_weights({c.x.data(), c.rows, c.inputs}, {c.dz.data(), c.rows, c.outputs}, leaf,
                           {first, last}, dw.span(), Zeros::automatic, room.span());
        REQUIRE((bits(dw.span()) == bits(std::span(expected).subspan(first, last - first))));
      }
    }
  }
}

TEST_CASE("a factor that becomes infinite meets the zeros of all rows", "[bf16]") {
  Case c(40, 40, 260, 16, Kind::ordinary, 6);
  c.w.data()[c.layout.index(3, 7)] = Float::max();
  c.dz.data()[5] = -Float::max();
  for (std::size_t i = 0; i < c.rows; ++i) c.x.data()[i * c.inputs + 3] = 0;
  require_definition(c);
  CHECK(std::isnan(definition(c).y[7]));
}

TEST_CASE("threads, rows and pauses at multiples of 32 change nothing in bf16", "[bf16]") {
  const std::size_t rows = 150;
  const std::size_t inputs = 96;
  const std::size_t outputs = 300;
  const Case c(rows, inputs, outputs, 8, Kind::special, 7);
  const Results expected = definition(c);
  set_product_threads(3);
  const auto all = instructions();
  const test::AmxEmulator amx;
  for (const auto& [name, bf16] : all) {
    INFO(name);
    require_same(computed(c, bf16, Zeros::automatic), expected);
    const auto products = make_strict_products(bf16, Zeros::automatic);
    Values y(outputs);
    for (std::size_t i = 0; i < rows; i += 7) {
      // Inputs [0, 32), then the others.
      const Panels low{32, outputs};
      const Panels high{64, outputs};
      AlignedBuffer<float> below(low.size());
      AlignedBuffer<float> above(high.size());
      for (std::size_t j = 0; j < outputs; ++j) {
        for (std::size_t k = 0; k < 32; ++k) below.data()[low.index(k, j)] = c.w_at(k, j);
        for (std::size_t k = 0; k < 64; ++k) above.data()[high.index(k, j)] = c.w_at(32 + k, j);
      }
      const float* x = c.x.data() + i * inputs;
      products->forward({x, 1, 32}, {32, outputs, below.span(), c.bias.span()},
                        Activation::identity, {y.data(), 1, outputs});
      products->forward({x + 32, 1, 64}, {64, outputs, above.span(), {}}, Activation::relu,
                        {y.data(), 1, outputs}, {Output::accumulate});
      REQUIRE((bits(y) == bits(std::span(expected.relu_y).subspan(i * outputs, outputs))));
    }
    // Outputs [0, 64), then the others.
    const std::size_t kept = 64;
    const Panels low{inputs, kept};
    const Panels high{inputs, outputs - kept};
    AlignedBuffer<float> below(low.size());
    AlignedBuffer<float> above(high.size());
    Values low_dz;
    Values high_dz;
    for (std::size_t j = 0; j < outputs; ++j) {
      for (std::size_t k = 0; k < inputs; ++k) {
        float& to =
            j < kept ? below.data()[low.index(k, j)] : above.data()[high.index(k, j - kept)];
        to = c.w_at(k, j);
      }
    }
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < outputs; ++j) {
        (j < kept ? low_dz : high_dz).push_back(c.dz_at(i, j));
      }
    }
    const Matrix<const float> x{c.x.data(), rows, inputs};
    Values dx(rows * inputs);
    products->backward_input({low_dz.data(), rows, kept}, {inputs, kept, below.span(), {}}, x,
                             Activation::identity, {dx.data(), rows, inputs});
    products->backward_input({high_dz.data(), rows, outputs - kept},
                             {inputs, outputs - kept, above.span(), {}}, x, Activation::relu,
                             {dx.data(), rows, inputs}, {Output::accumulate});
    REQUIRE((bits(dx) == bits(expected.relu_dx)));
    Values glued;
    for (std::size_t first = 0, last = 0; first < c.layout.size(); first = last) {
      last = std::min(c.layout.size(), first + 16 * 131);
      AlignedBuffer<float> dw(last - first);
      products->backward_weights({c.x.data(), rows, inputs}, {c.dz.data(), rows, outputs}, c.leaf,
                                 {first, last}, dw.span());
      glued.insert(glued.end(), dw.span().begin(), dw.span().end());
    }
    REQUIRE((bits(glued) == bits(expected.dw)));
  }
  set_product_threads(1);
}
