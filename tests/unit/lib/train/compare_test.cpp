#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/base/errors.hpp"
#include "lockstep/train/recorded_run.hpp"
#include "lockstep/train/run_directory.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace lockstep;
using namespace lockstep::train;
using Catch::Matchers::Contains;
using nlohmann::json;
using test::TemporaryFolder;

namespace {

/// `count` steps, three an epoch; every second one with hashes. Every epoch is a whole one.
RecordedRun recorded(std::uint64_t count) {
  RecordedRun run;
  run.status = "finished";
  run.settings = {{"seed", "22"}, {"threads", "\"auto\""}};
  for (std::uint64_t s = 1; s <= count; ++s) {
    RecordedStep step{s, (s + 2) / 3, {{"loss", 1.0 / static_cast<double>(s)}}, {}};
    if (s % 2 == 0) step.tensors = {{"0.weight", "aa"}, {"0.bias", "bb"}};
    run.steps.push_back(step);
    if (s % 3 == 0) run.epochs.push_back({s / 3, s, {{"weights_hash", "cc"}, {"test_loss", 0.5}}});
  }
  return run;
}

/// A run directory as the trainer leaves it; returns its path.
std::filesystem::path written(const TemporaryFolder& folder) {
  const auto path = folder.path() / "run";
  RunDirectory directory(path.string(), "seed = 7\n", {.version = "1", .ranks = 3});
  directory.on_step({1, 1, 128, 0.1 + 0.2, 0.0625, 0.0041});
  directory.on_step({2, 1, 128, 1e-300, 0.5, 0.0041, {{"0.weight", 0xab}, {"0.bias", 1}}});
  directory.on_epoch({.epoch = 1, .test = {.loss = 0.7}, .weights_hash = 0xcd});
  directory.finish(RunReport());
  return path;
}

void replace(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string text_of(const std::filesystem::path& path) {
  const auto bytes = test::read_bytes(path);
  return {bytes.begin(), bytes.end()};
}

}  // namespace

TEST_CASE("equal runs are the same, and the receipt says how far", "[compare]") {
  const auto result = compare(recorded(7), recorded(7));
  CHECK(result.first() == nullptr);
  CHECK(result.steps == 7);
  CHECK(result.first_step == 1);
  CHECK(result.last_step == 7);
  CHECK(result.hashed_steps == 3);
  CHECK(result.epochs == 2);
  CHECK(result.settings.empty());
}

TEST_CASE("the first step that differs is found, to the last bit", "[compare]") {
  const auto a = recorded(7);
  auto b = a;
  b.steps[4].figures[0].second = std::nextafter(std::get<double>(b.steps[4].figures[0].second), 1);
  b.steps[5].tensors[1].second = "xx";
  b.epochs[1].figures[0].second = "yy";
  const auto result = compare(a, b);
  REQUIRE(result.first() == &*result.figure);
  CHECK(result.figure->step == 5);
  CHECK(result.figure->what == "loss");
  CHECK(result.figure->a == Recorded(0.2));
  CHECK(result.figure->b == b.steps[4].figures[0].second);
  CHECK(result.tensor->step == 6);
  CHECK(result.tensor->what == "tensor 0.bias");
  CHECK(result.epoch->what == "epoch 2 weights_hash");
  CHECK(result.epoch->step == 6);
}

TEST_CASE("a tensor that differs before the loss comes first", "[compare]") {
  const auto a = recorded(6);
  auto b = a;
  b.steps[1].tensors[0].second = "xx";
  b.steps[1].tensors[1].second = "yy";
  b.steps[2].figures[0].second = 3.0;
  const auto result = compare(a, b);
  REQUIRE(result.first() == &*result.tensor);
  CHECK(result.tensor->step == 2);
  CHECK(result.tensor->what == "tensor 0.weight");
  CHECK(result.tensor->others == 1);
}

TEST_CASE("an epoch alone can differ", "[compare]") {
  const auto a = recorded(6);
  auto b = a;
  b.epochs[0].figures[1].second = 0.25;
  const auto result = compare(a, b);
  REQUIRE(result.first() == &*result.epoch);
  CHECK(result.epoch->what == "epoch 1 test_loss");
  CHECK(result.epoch->step == 3);
}

TEST_CASE("zeros of either sign differ", "[compare]") {
  auto a = recorded(1);
  auto b = a;
  a.steps[0].figures[0].second = 0.0;
  b.steps[0].figures[0].second = -0.0;
  CHECK(compare(a, b).first() != nullptr);
}

TEST_CASE("runs of other lengths are compared as far as both go", "[compare]") {
  const auto a = recorded(9);
  auto b = recorded(5);
  b.epochs.push_back({2, 5, {{"weights_hash", "within epoch 2"}}});
  auto result = compare(a, b);
  CHECK(result.first() == nullptr);
  CHECK(result.steps == 5);
  CHECK(result.epochs == 1);  // their second epochs ended at other steps

  auto late = a;
  late.steps.erase(late.steps.begin(), late.steps.begin() + 3);
  late.epochs.erase(late.epochs.begin());
  result = compare(late, b);
  CHECK(result.first() == nullptr);
  CHECK(result.steps == 2);
  CHECK(result.first_step == 4);
  CHECK(result.last_step == 5);

  late.steps.erase(late.steps.begin(), late.steps.begin() + 2);
  CHECK_THROWS_AS(compare(late, b), DataError);
  CHECK_THROWS_WITH(compare(late, b), Contains("6 to 9") && Contains("1 to 5"));
}

TEST_CASE("a tensor that one run lacks is absent", "[compare]") {
  const auto a = recorded(2);
  auto b = a;
  b.steps[1].tensors.pop_back();
  CHECK(compare(a, b).tensor->b == Recorded("absent"));
  CHECK(compare(b, a).tensor->a == Recorded("absent"));
  CHECK(compare(b, a).tensor->what == "tensor 0.bias");
  b.steps[1].tensors.clear();  // no hashes recorded: nothing to compare
  CHECK(compare(a, b).first() == nullptr);
  CHECK(compare(a, b).hashed_steps == 0);
}

TEST_CASE("settings that differ are a hint and no difference", "[compare]") {
  const auto a = recorded(2);
  auto b = a;
  b.settings[1].second = "2";
  b.settings.emplace_back("version", "2.0");  // unknown of the other
  const auto result = compare(a, b);
  CHECK(result.first() == nullptr);
  REQUIRE(result.settings.size() == 1);
  CHECK(result.settings[0].what == "threads");
  CHECK(result.settings[0].a == Recorded("\"auto\""));
}

TEST_CASE("the receipt as JSON", "[compare]") {
  const auto a = recorded(3);
  auto b = a;
  auto text = json::parse(to_json(compare(a, b)));
  CHECK(text["same"] == true);
  CHECK(text["steps_compared"] == 3);
  CHECK(text["first_difference"].is_null());
  CHECK(text["settings"].empty());
  b.steps[0].figures[0].second = 0.1 + 0.2;
  b.settings[0].second = "23";
  text = json::parse(to_json(compare(a, b)));
  CHECK(text["same"] == false);
  CHECK(text["first_difference"] ==
        json({{"step", 1}, {"what", "loss"}, {"a", 1.0}, {"b", 0.1 + 0.2}}));
  CHECK(text["first_tensor_difference"].is_null());
  CHECK(text["settings"]["seed"] == json({"22", "23"}));
}

TEST_CASE("a run directory reads back as it was written", "[compare]") {
  const TemporaryFolder folder;
  const auto path = written(folder);
  auto run = read_run(path);
  REQUIRE(run.steps.size() == 2);
  CHECK(run.steps[0].figures == Figures{{"loss", 0.1 + 0.2}, {"accuracy", 0.0625}});
  CHECK(run.steps[0].tensors.empty());
  CHECK(run.steps[1].figures[0].second == Recorded(1e-300));
  CHECK(run.steps[1].tensors ==
        Figures{{"0.weight", "00000000000000ab"}, {"0.bias", "0000000000000001"}});
  REQUIRE(run.epochs.size() == 1);
  CHECK(run.epochs[0].last_step == 2);
  CHECK(run.epochs[0].figures[0].second == Recorded("00000000000000cd"));
  const auto has = [&](const char* name, const char* literal) {
    return std::count(run.settings.begin(), run.settings.end(), Figures::value_type(name, literal));
  };
  CHECK(has("ranks", "3") == 1);
  CHECK(has("version", "1") == 1);
  CHECK(compare(run, read_run(path)).first() == nullptr);

  const auto summary = text_of(path / "summary.json");
  CHECK(is_finished(path));
  replace(path / "summary.json", summary.substr(0, 40));
  CHECK_FALSE(is_finished(path));

  std::filesystem::remove(path / "summary.json");
  CHECK_FALSE(is_finished(path));
  run = read_run(path);
  CHECK(run.status.empty());
  CHECK(run.epochs.empty());
  CHECK(compare(run, run).first() == nullptr);
}

TEST_CASE("a damaged run directory is refused with file, line and reason", "[compare]") {
  const TemporaryFolder folder;
  const auto path = written(folder);
  const auto lines = text_of(path / "metrics.jsonl");
  const auto summary = text_of(path / "summary.json");
  const auto refusal = [&](const char* file, const std::string& text) -> std::string {
    const auto before = text_of(path / file);
    replace(path / file, text);
    std::string what;
    try {
      read_run(path);
    } catch (const DataError& error) {
      what = error.what();
    }
    replace(path / file, before);
    return what;
  };
  const auto first = lines.substr(0, lines.find('\n') + 1);
  for (std::size_t cut = first.size() + 1; cut + 1 < lines.size(); ++cut) {
    REQUIRE_THAT(refusal("metrics.jsonl", lines.substr(0, cut)),
                 Contains("metrics.jsonl:2: not JSON, or cut off") && Contains("remedy"));
  }
  CHECK(refusal("metrics.jsonl", lines.substr(0, lines.size() - 1)).empty());  // the newline alone
  CHECK_THAT(refusal("metrics.jsonl", ""), Contains("no step is recorded"));
  CHECK_THAT(refusal("metrics.jsonl", first + first), Contains(":2: step 1 stands behind step 1"));
  CHECK_THAT(refusal("metrics.jsonl", first + "\n"), Contains(":2: not JSON"));
  CHECK_THAT(refusal("metrics.jsonl", "[1]\n"), Contains(":1: not an object"));
  CHECK_THAT(refusal("metrics.jsonl", "{\"step\": -1}\n"),
             Contains("'step' is not a whole number"));
  CHECK_THAT(refusal("metrics.jsonl", "{\"step\": 1}\n"), Contains("'epoch' is missing"));
  CHECK_THAT(refusal("metrics.jsonl", R"({"step": 1, "epoch": 1, "loss": null})"),
             Contains("'loss' is not a number"));
  CHECK_THAT(refusal("metrics.jsonl", R"({"step": 1, "epoch": 1, "loss": 1e999})"),
             Contains(":1: holds a number"));
  CHECK_THAT(
      refusal("metrics.jsonl",
              R"({"step": 1, "epoch": 1, "loss": 1, "accuracy": 0, "hashes": {"0.bias": 3}})"),
      Contains("'0.bias' is not a text"));
  CHECK_THAT(refusal("summary.json", summary.substr(0, summary.size() / 2)),
             Contains("summary.json:") && Contains("not JSON, or cut off"));
  CHECK_THAT(refusal("summary.json", "{}"), Contains("'epochs' is missing"));
  CHECK_THAT(refusal("summary.json", R"({"epochs": [3]})"), Contains("no object around 'epoch'"));
}

TEST_CASE("a folder without a run is refused", "[compare]") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(read_run(folder.path() / "none"), Contains("none: no such folder"));
  CHECK_THROWS_WITH(read_run(folder.path()), Contains("metrics.jsonl: no such file"));
  CHECK_THROWS_WITH(read_run("/dev/null"), Contains("is not a folder"));
  std::filesystem::create_directory(folder.path() / "metrics.jsonl");
  CHECK_THROWS_WITH(read_run(folder.path()), Contains("is not a regular file"));
}
