// `lockstep evaluate`: loss and accuracy of a checkpoint.
#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/cli.hpp"
#include "apps/console.hpp"
#include "apps/inference_job.hpp"
#include "apps/subcommands.hpp"
#include "collectives/agreement.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/text.hpp"
#include "lib/train/evaluation.hpp"

namespace lockstep::apps {
namespace {

Syntax evaluate_syntax() {
  Syntax syntax = inference_syntax();
  syntax.command = "lockstep evaluate";
  syntax.does = "Loss and accuracy of a checkpoint on a test set, every example counted once.";
  syntax.usage = "CHECKPOINT --data PATH [flags]   (a checkpoint, or a run: its last one)";
  syntax.flags = {{"json", "", "print one line of JSON instead"}};
  return syntax;
}

/// The network was trained for a loss that we have. The same on every rank.
void require_loss(const InferenceJob& job) {
  if (nn::built_in_loss<float>(job.saved.loss) != nullptr) return;
  throw comm::AgreedError(
      ExitCode::data,
      (job.saved.folder / "network.json").string() + ": was trained for the loss '" +
          job.saved.loss + "', which is none of lockstep's own",
      "evaluate it with the program that trained it; `lockstep predict` needs no loss");
}

/// The same on every rank.
void require_finite(const train::Evaluation& result) {
  if (std::isfinite(result.loss_sum)) return;
  throw comm::AgreedError(ExitCode::diverged, "the loss on the test set is not finite",
                          "look for extreme values in the data, or use an earlier checkpoint");
}

std::string json_text(const train::Evaluation& result, std::uint64_t weights_hash) {
  const nlohmann::ordered_json json = {{"examples", result.examples},
                                       {"loss", result.loss()},
                                       {"accuracy", result.accuracy()},
                                       {"ids_digest", to_hex(result.ids_digest)},
                                       {"weights_hash", to_hex(weights_hash)}};
  return json.dump();
}

void print_table(const train::Evaluation& result, const InferenceJob& job,
                 const RunConfig& config) {
  Banner table;
  table.headline = fmt::format("loss {:.6f}, accuracy {:.4f} on {}", result.loss(),
                               result.accuracy(), counted(result.examples, "example"));
  table.rows = subject_rows(job, config);
  if (job.saved.loss != nn::default_loss) table.rows.emplace_back("loss", job.saved.loss);
  table.rows.emplace_back("test", error_in_words(result));
  table.rows.emplace_back("examples", fmt::format("each evaluated exactly once: ids digest {}",
                                                  to_hex(result.ids_digest)));
  table.print();
}

void evaluate_on(const Arguments& arguments, const RunConfig& config, comm::Communicator& comm) {
  InferenceJob job = make_inference_job(arguments, config, comm);
  require_loss(job);
  const train::Evaluation result = job.replica->evaluate(*job.reader);
  require_finite(result);
  if (comm.rank() != 0) return;
  if (arguments.given("json")) {
    fmt::print("{}\n", json_text(result, job.saved.weights_hash));
  } else {
    print_table(result, job, config);
  }
}

}  // namespace

int evaluate_command(const std::vector<std::string>& words) {
  return run_on_ranks(evaluate_syntax(), words, evaluate_on);
}

}  // namespace lockstep::apps
