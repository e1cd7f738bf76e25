#include "lib/train/run_directory.hpp"

#include <array>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "lib/base/errors.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/process.hpp"

namespace lockstep::train {
namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr auto flush_interval = std::chrono::seconds(1);

/// Makes runs/2026-11-20-235959, or with -2, -3 ... where that is taken: two runs that start in the
/// same second get a folder each.
std::filesystem::path claim_dated_folder() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d-%H%M%S", &local);
  const std::filesystem::path first = std::filesystem::path("runs") / text.data();
  make_folder(first.parent_path());
  std::filesystem::path path = first;
  for (int n = 2; !claim_folder(path); ++n) path = first.string() + "-" + std::to_string(n);
  return path;
}

void require_no_run(const std::filesystem::path& path) {
  for (const char* name : {"config.toml", "summary.json", "metrics.jsonl", "checkpoints"}) {
    std::error_code ignored;
    if (std::filesystem::exists(path / name, ignored)) {
      throw ConfigError("run-dir " + path.string() + ": holds a run already (" + name + ")",
                        "choose another --run-dir, or move that one away");
    }
  }
}

ordered_json epoch_json(const EpochReport& epoch) {
  return {{"epoch", epoch.epoch},
          {"train_loss", epoch.train_loss},
          {"train_accuracy", epoch.train_accuracy},
          {"test_loss", epoch.test_loss},
          {"test_accuracy", epoch.test_accuracy},
          {"seconds", epoch.seconds},
          {"examples_per_second", epoch.examples_per_second},
          {"weights_hash", to_hex(epoch.weights_hash)}};
}

}  // namespace

RunDirectory::RunDirectory(const std::string& path, const std::string& config_toml, RunFacts facts)
    : path_(path == "auto" ? claim_dated_folder() : std::filesystem::path(path)),
      facts_(std::move(facts)) {
  require_no_run(path_);
  make_folder(path_ / "checkpoints");
  write_file(path_ / "config.toml", config_toml);
  metrics_.emplace(path_ / "metrics.jsonl");
}

void RunDirectory::on_step(const StepReport& report) {
  ordered_json line = {{"step", report.step},         {"epoch", report.epoch},
                       {"examples", report.examples}, {"loss", report.loss},
                       {"accuracy", report.accuracy}, {"seconds", report.seconds}};
  for (const auto& [tensor, hash] : report.hashes) line["hashes"][tensor] = to_hex(hash);
  metrics_->write(line.dump());
  const auto now = Clock::now();
  if (now - flushed_ < flush_interval) return;
  metrics_->flush();
  flushed_ = now;
}

void RunDirectory::on_epoch(const EpochReport&) { metrics_->flush(); }

void RunDirectory::on_checkpoint(const nn::Network<float>& network, std::uint64_t step,
                                 std::uint64_t examples) {
  metrics_->flush();
  facts_.checkpoint.step = step;
  facts_.checkpoint.examples = examples;
  last_checkpoint_ = save_checkpoint(path_ / "checkpoints", network, facts_.checkpoint);
}

void RunDirectory::finish(const RunReport& report) {
  ordered_json epochs = ordered_json::array();
  for (const auto& epoch : report.epochs) epochs.push_back(epoch_json(epoch));
  const auto& seconds = report.step_seconds;
  const ordered_json summary = {{"version", facts_.version},
                                {"ranks", facts_.ranks},
                                {"device", facts_.device},
                                {"parameters", facts_.parameters},
                                {"steps", report.steps},
                                {"examples", report.examples},
                                {"epochs", epochs},
                                {"step_seconds",
                                 {{"median", seconds.total},
                                  {"data", seconds.data},
                                  {"compute", seconds.compute},
                                  {"reduce", seconds.reduce},
                                  {"update", seconds.update}}},
                                {"startup_seconds", report.startup_seconds},
                                {"examples_per_second", report.examples_per_second},
                                {"weights_hash", to_hex(report.weights_hash)},
                                {"test_ids_digest", to_hex(report.test.ids_digest)},
                                {"data", {{"bytes_read", report.bytes_read}}},
                                {"plan_digest", to_hex(facts_.plan_digest)},
                                {"peak_rss_bytes", peak_rss_bytes()}};
  metrics_->flush();
  write_file(path_ / "summary.json", summary.dump(2) + "\n");
}

}  // namespace lockstep::train
