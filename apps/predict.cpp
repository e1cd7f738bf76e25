// `lockstep predict`: a checkpoint's label for every example, as CSV.
#include <spdlog/fmt/fmt.h>

#include <filesystem>
#include <iterator>
#include <optional>
#include <system_error>

#include "apps/cli.hpp"
#include "apps/inference_job.hpp"
#include "apps/subcommands.hpp"
#include "collectives/agreement.hpp"
#include "data/file.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/text.hpp"
#include "lib/train/evaluation.hpp"

namespace lockstep::apps {
namespace {

Syntax predict_syntax() {
  Syntax syntax = inference_syntax();
  syntax.command = "lockstep predict";
  syntax.does = "Writes a checkpoint's label for every example of a test set, in the set's order.";
  syntax.usage =
      "CHECKPOINT --data PATH --output FILE [flags]   (a checkpoint, or a run: its last one)";
  syntax.flags = {{"output", "FILE", "CSV to write: id,label,probability"}};
  return syntax;
}

/// The file that `output` means, links followed, so that a link stays one. What is there already
/// must be a regular file: others cannot be replaced in one step.
std::filesystem::path target_of(const std::string& output) {
  std::error_code error;
  const auto status = std::filesystem::status(output, error);
  if (status.type() == std::filesystem::file_type::not_found) return output;
  if (error) {
    throw OutputError(output + ": cannot be examined: " + error.message(),
                      "choose a folder that can be written to");
  }
  if (!std::filesystem::is_regular_file(status)) {
    throw OutputError(output + ": is no regular file", "give --output the name of a file");
  }
  return std::filesystem::canonical(output);
}

/// id,label,probability: written as it grows, and named when it is whole.
class PredictionFile {
 public:
  explicit PredictionFile(const std::string& output) : file_(target_of(output)) {
    text_ = "id,label,probability\n";
  }

  void write(std::span<const train::Prediction> predictions) {
    for (const auto& prediction : predictions) {
      fmt::format_to(std::back_inserter(text_), "{},{},{}\n", prediction.id, prediction.label,
                     shortest(prediction.probability));
    }
    const auto bytes = std::as_bytes(std::span(text_));
    file_.write({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
    text_.clear();
  }

  void finish() {
    file_.finish();
    file_.publish();
  }

 private:
  data::NewFile file_;
  std::string text_;
};

void predict_on(const Arguments& arguments, const RunConfig& config, comm::Communicator& comm) {
  const std::string output = arguments.value("output", "");
  std::optional<PredictionFile> file;
  comm::together(comm, [&] {
    if (output.empty()) throw ConfigError("no --output", "say which file to write");
  });
  InferenceJob job = make_inference_job(arguments, config, comm);
  comm::together(comm, [&] {
    if (comm.rank() == 0) file.emplace(output);
  });
  job.replica->predict(*job.reader,
                       [&](std::span<const train::Prediction> batch) { file->write(batch); });
  comm::together(comm, [&] {
    if (file) file->finish();
  });
  if (comm.rank() != 0) return;
  fmt::print("{}: {}\n", output, counted(job.test->records(), "prediction"));
}

}  // namespace

int predict_command(const std::vector<std::string>& words) {
  return run_on_ranks(predict_syntax(), words, predict_on);
}

}  // namespace lockstep::apps
