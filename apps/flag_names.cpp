#include "apps/flag_names.hpp"

#include <algorithm>
#include <cctype>
#include <map>

#include "apps/settings.hpp"
#include "lockstep/base/text.hpp"

namespace lockstep::apps {

std::optional<std::string> suggestion(std::string_view word, std::span<const std::string> names) {
  // What PyTorch, TensorFlow, scikit-learn, mpirun and others call it, and the name here.
  static const std::multimap<std::string_view, std::string> meanings = {
      {"lr", "learning-rate"},
      {"rate", "learning-rate"},
      {"bs", "batch-size"},
      {"batch", "batch-size"},
      {"eps", "epsilon"},
      {"wd", "weight-decay"},
      {"epoch", "epochs"},
      {"max-iter", "epochs"},
      {"max-steps", "steps"},
      {"iterations", "steps"},
      {"hidden", "layers"},
      {"hidden-layers", "layers"},
      {"units", "layers"},
      {"hidden-layer-sizes", "layers"},
      {"random-state", "seed"},
      {"random-seed", "seed"},
      {"dataset", "data"},
      {"input", "data"},
      {"file", "data"},
      {"target", "label-column"},
      {"label", "label-column"},
      {"y", "label-column"},
      {"sample-weight", "weight-column"},
      {"weights", "weight-column"},
      {"sep", "separator"},
      {"delimiter", "separator"},
      {"num-classes", "classes"},
      {"n-classes", "classes"},
      {"test-size", "test-split"},
      {"split", "test-split"},
      {"criterion", "loss"},
      {"objective", "loss"},
      {"loss-function", "loss"},
      {"mse", "squared-error"},
      {"mean_squared_error", "squared-error"},
      {"mae", "absolute-error"},
      {"l1", "absolute-error"},
      {"mean_absolute_error", "absolute-error"},
      {"bce", "binary-cross-entropy"},
      {"categorical_crossentropy", "cross-entropy"},
      {"validation-split", "validation"},
      {"val-split", "validation"},
      {"validation-fraction", "validation"},
      {"early-stopping", "patience"},
      {"top-k", "metrics"},
      {"auc", "metrics"},
      {"n-iter-no-change", "patience"},
      {"save-best-only", "keep-best"},
      {"restore-best-weights", "keep-best"},
      {"normalize", "standardize"},
      {"scale", "standardize"},
      {"workers", "ranks"},
      {"np", "ranks"},
      {"n", "ranks"},
      {"nproc", "ranks"},
      {"nproc-per-node", "ranks"},
      {"world-size", "ranks"},
      {"num-threads", "threads"},
      {"gpu", "device"},
      {"cuda", "device"},
      {"gpu", "cuda"},
      {"gpus", "device"},
      {"accelerator", "device"},
      {"dtype", "precision"},
      {"out", "run-dir"},
      {"output-dir", "run-dir"},
      {"log-dir", "run-dir"},
      {"dir", "run-dir"},
      {"continue", "resume"},
      {"restart", "resume"},
      {"save-every", "checkpoint-every"},
      {"quiet", "progress"},
      {"verbose", "progress"},
      {"out", "output"},
      {"o", "output"},
      {"fit", "train"},
      {"test", "evaluate"},
      {"eval", "evaluate"},
      {"validate", "evaluate"},
      {"infer", "predict"},
      {"inference", "predict"},
      {"show", "inspect"},
      {"info", "inspect"},
      {"status", "doctor"},
      {"diff", "compare"},
      {"draw", "plot"},
      {"figure", "plot"},
      {"benchmark", "bench"}};
  const auto [begin, end] = meanings.equal_range(word);
  for (auto meant = begin; meant != end; ++meant) {
    if (contains(names, meant->second)) return meant->second;
  }
  return nearest(word, names);
}

std::string in_shell(const std::string& word) {
  const auto is_plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || static_cast<signed char>(c) < 0 ||
           std::string_view("-_./,:=%+@").find(c) != std::string_view::npos;
  };
  if (std::all_of(word.begin(), word.end(), is_plain)) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

namespace {

/// "rebatch=ceil" -> "--rebatch ceil"; nullopt if the word is not an option.
std::optional<std::string> flag_of(const std::string& option) {
  const auto equals = option.find('=');
  std::string name = option.substr(0, equals);
  if (name.find(' ') != std::string::npos || name.find('-') != std::string::npos) {
    return std::nullopt;
  }
  std::replace(name.begin(), name.end(), '_', '-');
  if (name == "policy") name = "shard-policy";  // DistributeOptions and PlanOptions
  const bool is_flag =
      find_setting(name) != nullptr || name == "files" || name == "from-format";  // of `convert`
  if (!is_flag) return std::nullopt;
  std::string flag = "--" + name;
  const std::string value = equals == std::string::npos ? "" : option.substr(equals + 1);
  if (!value.empty() && value != "true") flag += " " + in_shell(value);
  return flag;
}

}  // namespace

std::string with_flags(const std::string& message) {
  std::string text;
  std::size_t at = 0;
  while (true) {
    const auto open = message.find('`', at);
    const auto close = open == std::string::npos ? open : message.find('`', open + 1);
    if (close == std::string::npos) return text + message.substr(at);
    const auto flag = flag_of(message.substr(open + 1, close - open - 1));
    text += message.substr(at, open - at);
    text += flag ? *flag : message.substr(open, close + 1 - open);
    at = close + 1;
  }
}

}  // namespace lockstep::apps
