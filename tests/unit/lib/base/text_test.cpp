#include "lockstep/base/text.hpp"

#include <array>
#include <catch2/catch.hpp>
#include <cmath>

using namespace lockstep;

TEST_CASE("numbers for people", "[base]") {
  CHECK(grouped(0) == "0");
  CHECK(grouped(999) == "999");
  CHECK(grouped(1000) == "1,000");
  CHECK(grouped(905010) == "905,010");
  CHECK(grouped(18446744073709551615U) == "18,446,744,073,709,551,615");
  CHECK(counted(1, "step") == "1 step");
  CHECK(counted(1407, "step") == "1,407 steps");
  CHECK(counted(0, "step") == "0 steps");
  CHECK(bytes_text(999) == "999 bytes");
  CHECK(bytes_text(3140608) == "3.1 MB");
  CHECK(bytes_text(1e22) == "10000.0 EB");
  CHECK(with_decimals(0.8394, 3) == "0.839");
  CHECK(shortest(0.001F) == "0.001");
  CHECK(shortest(2.0F) == "2.0");
  CHECK(shortest(1e-20F) == "1e-20");
}

TEST_CASE("counts that may be beyond 64 bits", "[base]") {
  CHECK(count_text(0) == "0");
  CHECK(count_text(1234.5) == "1,235");
  CHECK(count_text(1e30) == "1e+30");
  CHECK(zero_padded(7, 3) == "007");
  CHECK(zero_padded(1234, 3) == "1234");
}

TEST_CASE("lists are split at commas", "[base]") {
  CHECK(split_list("700, 500") == std::vector<std::string>{"700", "500"});
  CHECK(split_list("7") == std::vector<std::string>{"7"});
  CHECK(split_list("7,") == std::vector<std::string>{"7", ""});
  CHECK(split_list("  ").empty());
}

TEST_CASE("a number is the whole text", "[base]") {
  CHECK(number_in<double>("-2.5e-1") == -0.25);
  CHECK(number_in<float>("0.1") == 0.1F);
  CHECK(std::isinf(number_in<double>("inf").value()));
  for (const char* text : {"", " 1", "1 ", "+1", "1.5x", "x", "0x10", "1e400"}) {
    INFO(text);
    CHECK_FALSE(number_in<double>(text).has_value());
  }
  CHECK_FALSE(number_in<float>("1e39").has_value());
}

TEST_CASE("elements are joined", "[base]") {
  CHECK(joined(std::vector<std::string>()).empty());
  CHECK(joined(std::array{1, 2, 3}) == "1, 2, 3");
  CHECK(joined(std::array{"a", "", "b"}, "|") == "a||b");
  CHECK(joined(std::array{"a", "bc"}, " ", in_quotes) == "'a' 'bc'");
  CHECK(joined(std::vector<std::string>{"a", "bc"}, "x", &std::string::size) == "1x2");
}

TEST_CASE("ranks are written as ranges", "[base]") {
  CHECK(ranges_text({}).empty());
  CHECK(ranges_text(std::vector{0, 1, 2, 5}) == "0-2, 5");
  CHECK(ranks_text(std::vector{3}) == "rank 3");
  CHECK(ranks_text(std::vector{1, 2}) == "ranks 1-2");
  const std::vector<int> odd = {1, 3, 5, 7, 9, 11, 13, 15};
  CHECK(ranks_text(odd) == "ranks 1, 3, 5, 7, 9, 11, 13, 15");
  auto many = odd;
  many.insert(many.end(), {17, 18});
  CHECK(ranks_text(many) == "ranks 1, 3, 5, 7, 9, 11, 13, 15, ... (10 in all)");
}

TEST_CASE("what is printed has no control characters and no endless lines", "[base]") {
  CHECK(presentable("a\x1b[31mb\tc\nremedy: d\n") == "a?[31mb?c\nremedy: d\n");
  CHECK(presentable(std::string("a\0b\x7f", 4)) == "a?b?");
  CHECK(presentable("Gr\xc3\xb6\xc3\x9f"
                    "e \xc2\x9b"
                    "31m \xff") ==
        "Gr\xc3\xb6\xc3\x9f"
        "e ?31m \xff");
  CHECK(presentable("").empty());
  const std::string line(1000, 'x');
  CHECK(presentable(line + "\n" + line) == line + "\n" + line);
  CHECK(presentable("1234567890123456789012345678901234567890", 8) ==
        "123456 ... (40 bytes) ... 90");
  const std::string shortened = presentable(std::string(1, 'a') + std::string(60, '\xc3'), 8);
  CHECK(shortened.find("(61 bytes)") != std::string::npos);
}

TEST_CASE("the nearest name is near", "[base]") {
  const std::array<std::string, 3> names = {"batch-size", "learning-rate", "seed"};
  CHECK(nearest("batchsize", names) == "batch-size");
  CHECK(nearest("learning_rate", names) == "learning-rate");
  CHECK(nearest("sede", names) == "seed");  // a swap is one edit
  CHECK_FALSE(nearest("sele", names).has_value());
  CHECK(nearest("BATCH-SIZE", names) == "batch-size");
  CHECK_FALSE(nearest("momentum", names).has_value());
  CHECK(did_you_mean(nearest("sede", names), "use one of them") == "did you mean 'seed'?");
  CHECK(did_you_mean(nearest("momentum", names), "use one of them") == "use one of them");
  CHECK(did_you_mean(std::nullopt).empty());
}
