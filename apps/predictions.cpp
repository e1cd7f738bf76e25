#include "apps/predictions.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "apps/console.hpp"
#include "apps/table_texts.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/signals.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/csv.hpp"
#include "lockstep/data/npy.hpp"
#include "lockstep/nn/loss.hpp"

namespace lockstep::apps {
namespace {

/// A file that is renamed when it is complete, or stdout.
class Target {
 public:
  explicit Target(const std::string& path) {
    if (path != "-") file_.emplace(replaceable(path));
  }

  void write(std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text));
    if (file_) return file_->write(bytes);
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) flush_stdout();
  }

  void finish() {
    if (file_) {
      file_->finish();
      file_->publish();
    } else {
      flush_stdout();
    }
  }

 private:
  std::optional<NewFile> file_;
};

std::string class_name(const PredictionOutput& output, std::size_t label) {
  return output.names.classes.empty() ? std::to_string(label) : output.names.classes[label];
}

/// The probability of class or label `i`.
float probability_of(const PredictionOutput& output, const train::Prediction& prediction,
                     std::size_t i) {
  const float given = prediction.outputs[i];
  return output.predicted == train::Predicted::flags ? nn::sigmoid(given) : given;
}

/// The output `i` of a regression, in the units of the table.
float value_of(const PredictionOutput& output, const train::Prediction& prediction, std::size_t i) {
  const data::TableColumn& target = output.names.targets[i];
  const auto standardized = static_cast<double>(prediction.outputs[i]);
  const auto value = static_cast<float>(standardized * target.deviation + target.mean);
  if (std::isfinite(value)) return value;
  throw Error(ExitCode::diverged,
              "record " + std::to_string(prediction.id) + ": the prediction of " +
                  in_quotes(target.name) + " is beyond float32",
              "look for extreme values in the data");
}

/// The names of what is predicted, as the data and the network have them.
std::vector<std::string> names_of_predictions(const PredictionOutput& output) {
  const auto& targets = output.names.targets;
  std::vector<std::string> heads(targets.size());
  std::transform(targets.begin(), targets.end(), heads.begin(),
                 [](const data::TableColumn& target) { return target.name; });
  if (!heads.empty()) return heads;
  if (output.predicted == train::Predicted::flags) {
    for (std::size_t i = 0; i < output.outputs; ++i) heads.push_back(class_name(output, i));
    if (!output.has_probabilities) return heads;
  } else {
    heads = {"label", "probability"};
    if (output.predicted == train::Predicted::label) return heads;
  }
  for (std::size_t i = 0; i < output.outputs; ++i) heads.push_back("p:" + class_name(output, i));
  return heads;
}

/// The names of what is predicted, all different, and none of them `id`, which numbers the records.
std::vector<std::string> heads_of(const PredictionOutput& output) {
  std::vector<std::string> heads = names_of_predictions(output);
  const std::unordered_set<std::string> names(heads.begin(), heads.end());
  std::unordered_set<std::string> taken = {"id"};
  for (std::string& head : heads) {
    if (taken.contains(head)) {
      while (names.contains(head) || taken.contains(head)) head.insert(0, "predicted:");
    }
    taken.insert(head);
  }
  return heads;
}

/// The texts of what is predicted, in the order of heads_of(). `text_of` writes a number.
template <class TextOf>
std::vector<std::string> fields_of(const PredictionOutput& output,
                                   const train::Prediction& prediction, TextOf text_of) {
  std::vector<std::string> fields;
  if (output.predicted == train::Predicted::values) {
    for (std::size_t i = 0; i < output.outputs; ++i) {
      fields.push_back(text_of(value_of(output, prediction, i)));
    }
    return fields;
  }
  if (output.predicted == train::Predicted::flags) {
    for (const float logit : prediction.outputs) {
      fields.emplace_back(nn::predicts_label(logit) ? "1" : "0");
    }
    if (!output.has_probabilities) return fields;
  } else {
    fields = {class_name(output, static_cast<std::size_t>(prediction.label)),
              text_of(prediction.probability)};
  }
  for (std::size_t i = 0; i < prediction.outputs.size(); ++i) {
    fields.push_back(text_of(probability_of(output, prediction, i)));
  }
  return fields;
}

/// The columns of the data that are written beside the predictions.
class KeptColumns {
 public:
  explicit KeptColumns(const PredictionOutput& output) : output_(output) {
    if (output.file_of) heads_ = {"file"};
    if (output.kept_columns.empty()) return;
    const std::vector<std::string> taken = heads_of(output);
    texts_.emplace(output.files, output.has_header, output.separator);
    const auto& there = texts_->columns();
    const bool is_all = output.kept_columns == std::vector<std::string>{"all"};
    if (!is_all && !output.has_header) {
      throw ConfigError("--keep-columns: the data's columns have no names",
                        "use --keep-columns all");
    }
    if (!is_all) choose(output.kept_columns);
    const std::vector<std::string>& names = is_all ? there : output.kept_columns;
    for (const std::string& name : names) {
      std::string head = name;
      const auto is_taken = [&] {
        return head == "id" || contains(taken, head) || (head != name && contains(names, head));
      };
      while (is_taken()) head.insert(0, "data:");
      const std::string first = head;  // of columns that are named alike
      for (int n = 2; contains(heads_, head) || is_taken(); ++n) {
        head = first + ":" + std::to_string(n);
      }
      heads_.push_back(std::move(head));
    }
  }

  /// Names of the columns, all different, and other than those of predictions.
  const std::vector<std::string>& names() const noexcept { return heads_; }

  /// The texts of the next record, in the order of names().
  const std::vector<std::string>& next() {
    values_.clear();
    if (output_.file_of) values_.push_back(output_.file_of(record_++));
    if (!texts_) return values_;
    const auto* const fields = texts_->next();
    if (fields == nullptr) {
      throw DataError(output_.files.back().string() + ": ends earlier than before", "");
    }
    values_.insert(values_.end(), fields->begin(), fields->end());
    return values_;
  }

 private:
  void choose(const std::vector<std::string>& names) {
    const auto& there = texts_->columns();
    std::vector<std::size_t> chosen;
    for (const std::string& name : names) {
      const auto at = index_of(there, name);
      if (!at) {
        throw ConfigError("--keep-columns: no column is named " + in_quotes(name),
                          did_you_mean(nearest(name, there), "the columns are " + listed(there)));
      }
      chosen.push_back(*at);
    }
    data::require_unique(there, names, output_.files.front().string() + ":1");
    texts_->choose(std::move(chosen));
  }

  const PredictionOutput& output_;
  std::uint64_t record_ = 0;         // that is next
  std::optional<TableTexts> texts_;  // nullopt: no column is kept
  std::vector<std::string> heads_;
  std::vector<std::string> values_;
};

class CsvPredictions final : public PredictionWriter {
 public:
  explicit CsvPredictions(const PredictionOutput& output)
      : output_(output), kept_(output_), target_(output.path) {
    text_ = "id";
    for (const std::string& name : heads_of(output_)) text_ += "," + data::csv_field(name);
    for (const std::string& name : kept_.names()) text_ += "," + data::csv_field(name);
    text_ += "\n";
  }

  void write(std::span<const train::Prediction> predictions) override {
    for (const auto& prediction : predictions) {
      text_ += std::to_string(prediction.id);
      for (const std::string& field :
           fields_of(output_, prediction, [](float number) { return shortest(number); })) {
        text_ += "," + data::csv_field(field);
      }
      for (const std::string& value : kept_.next()) text_ += "," + data::csv_field(value);
      text_ += "\n";
    }
    target_.write(text_);
    text_.clear();
  }

  void finish() override { target_.finish(); }

 private:
  PredictionOutput output_;
  KeptColumns kept_;
  Target target_;
  std::string text_;
};

class JsonPredictions final : public PredictionWriter {
 public:
  explicit JsonPredictions(const PredictionOutput& output)
      : output_(output), kept_(output_), target_(output.path) {}

  void write(std::span<const train::Prediction> predictions) override {
    std::string text;
    for (const auto& prediction : predictions) {
      nlohmann::ordered_json json = {{"id", prediction.id}};
      if (output_.predicted == train::Predicted::values) {
        for (std::size_t i = 0; i < output_.outputs; ++i) {
          json["values"][output_.names.targets[i].name] =
              shortest_double(value_of(output_, prediction, i));
        }
      } else if (output_.predicted == train::Predicted::flags) {
        add_labels(prediction, json);
      } else {
        add_class(prediction, json);
      }
      const auto& values = kept_.next();
      if (!values.empty()) {
        nlohmann::ordered_json columns;
        for (std::size_t i = 0; i < values.size(); ++i) columns[kept_.names()[i]] = values[i];
        json["columns"] = std::move(columns);
      }
      using Json = nlohmann::ordered_json;  // texts that are not UTF-8 are replaced
      text += json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    }
    target_.write(text);
  }

  void finish() override { target_.finish(); }

 private:
  void add_class(const train::Prediction& prediction, nlohmann::ordered_json& json) const {
    if (output_.names.classes.empty()) {
      json["label"] = prediction.label;
    } else {
      json["label"] = class_name(output_, static_cast<std::size_t>(prediction.label));
    }
    json["probability"] = shortest_double(prediction.probability);
    add_probabilities(prediction, json);
  }

  void add_labels(const train::Prediction& prediction, nlohmann::ordered_json& json) const {
    json["labels"] = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < prediction.outputs.size(); ++i) {
      if (!nn::predicts_label(prediction.outputs[i])) continue;
      json["labels"].push_back(class_name(output_, i));
    }
    if (output_.has_probabilities) add_probabilities(prediction, json);
  }

  void add_probabilities(const train::Prediction& prediction, nlohmann::ordered_json& json) const {
    for (std::size_t i = 0; i < prediction.outputs.size(); ++i) {
      json["probabilities"][class_name(output_, i)] =
          shortest_double(probability_of(output_, prediction, i));
    }
  }

  PredictionOutput output_;
  KeptColumns kept_;
  Target target_;
};

/// Labels as i4 [records], or several as i4 [records, labels]; all probabilities as f4 [records,
/// classes], or values as f4 [records, targets].
class NpyPredictions final : public PredictionWriter {
 public:
  explicit NpyPredictions(const PredictionOutput& output) : output_(output), target_(output.path) {
    if (!output.kept_columns.empty()) {
      throw ConfigError("--keep-columns: an NPY file has numbers alone",
                        "write CSV or JSON lines: --output FILE.csv");
    }
    std::vector<std::uint64_t> shape = {output.records};
    const bool is_label = output.predicted == train::Predicted::label;
    if (!is_label) shape.push_back(output.outputs);
    target_.write(data::npy_header(is_label || are_flags() ? "<i4" : "<f4", shape));
  }

  void write(std::span<const train::Prediction> predictions) override {
    std::string bytes;
    const auto append = [&](std::span<const std::byte> more) {
      bytes.append(reinterpret_cast<const char*>(more.data()), more.size());
    };
    for (const auto& prediction : predictions) {
      if (output_.predicted == train::Predicted::label) {
        append(std::as_bytes(std::span(&prediction.label, 1)));
      } else if (are_flags()) {
        for (const float logit : prediction.outputs) {
          const std::int32_t flag = nn::predicts_label(logit) ? 1 : 0;
          append(std::as_bytes(std::span(&flag, 1)));
        }
      } else {
        const bool are_values = output_.predicted == train::Predicted::values;
        for (std::size_t i = 0; i < output_.outputs; ++i) {
          const float number = are_values ? value_of(output_, prediction, i)
                                          : probability_of(output_, prediction, i);
          append(std::as_bytes(std::span(&number, 1)));
        }
      }
    }
    target_.write(bytes);
  }

  void finish() override { target_.finish(); }

 private:
  bool are_flags() const {
    return output_.predicted == train::Predicted::flags && !output_.has_probabilities;
  }

  PredictionOutput output_;
  Target target_;
};

/// The first predictions as a table on stdout.
class PredictionTable final : public PredictionWriter {
 public:
  explicit PredictionTable(const PredictionOutput& output) : output_(output), kept_(output_) {
    auto& head = lines_.emplace_back();
    head = {"record"};
    for (const std::string& name : heads_of(output_)) head.push_back(name);
    for (const std::string& name : kept_.names()) head.push_back(name);
  }

  void write(std::span<const train::Prediction> predictions) override {
    for (const auto& prediction : predictions) {
      auto& line = lines_.emplace_back();
      line = {std::to_string(prediction.id)};
      const bool are_values = output_.predicted == train::Predicted::values;
      for (std::string& field : fields_of(output_, prediction, [&](float number) {
             return are_values ? fmt::format("{:.6g}", number)
                               : with_decimals(static_cast<double>(number), 4);
           })) {
        line.push_back(std::move(field));
      }
      for (const std::string& value : kept_.next()) line.push_back(value);
    }
  }

  void finish() override {
    print_table(lines_);
    const std::size_t shown = lines_.size() - 1;
    if (shown == output_.records) return;
    fmt::print("... and {} more; --output FILE.csv writes all\n", grouped(output_.records - shown));
  }

 private:
  PredictionOutput output_;
  KeptColumns kept_;
  std::vector<std::vector<std::string>> lines_;
};

std::string format_of(const PredictionOutput& output) {
  if (output.format != "auto") return output.format;
  const std::string ending = lower_case(std::filesystem::path(output.path).extension().string());
  if (ending == ".jsonl" || ending == ".ndjson") return "jsonl";
  if (ending == ".npy") return "npy";
  for (const char* other :
       {".gz", ".zip", ".bz2", ".xz", ".zst", ".parquet", ".tsv", ".npz", ".json"}) {
    if (ending != other) continue;
    throw ConfigError("--output: files named " + ending + " are not written",
                      "name it *.csv, *.jsonl or *.npy, or give --output-format");
  }
  return "csv";
}

}  // namespace

std::unique_ptr<PredictionWriter> PredictionWriter::make(const PredictionOutput& output) {
  const std::string format = format_of(output);
  if (output.path.empty() && output.format == "auto") {
    return std::make_unique<PredictionTable>(output);
  }
  if (output.path.empty()) throw ConfigError("--output-format without --output", "name the file");
  if (format == "csv") return std::make_unique<CsvPredictions>(output);
  if (format == "jsonl") return std::make_unique<JsonPredictions>(output);
  if (format == "npy") return std::make_unique<NpyPredictions>(output);
  throw ConfigError("--output-format: '" + format + "' is none of auto|csv|jsonl|npy",
                    "use one of them");
}

StdinCopy::StdinCopy() {
  const std::string end = ".csv";
  std::string name = (temporary_folder() / ("lockstep-XXXXXX" + end)).string();
  const auto fail = [&](const std::string& what) {
    throw OutputError(name + ": cannot be " + what + ": " + system_reason(errno),
                      "set TMPDIR to a folder that can be written to");
  };
  const int descriptor = ::mkstemps(name.data(), static_cast<int>(end.size()));
  if (descriptor < 0) fail("created");
  path_ = name;
  add_temporary(path_);
  try {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> copy(::fdopen(descriptor, "w"),
                                                               std::fclose);
    if (copy == nullptr) fail("opened");
    std::array<char, 65536> bytes{};
    while (const std::size_t count = std::fread(bytes.data(), 1, bytes.size(), stdin)) {
      if (std::fwrite(bytes.data(), 1, count, copy.get()) != count) fail("written");
    }
    const int reason = errno;  // of fread, if it has failed
    if (std::ferror(stdin) != 0) {
      throw DataError("stdin: cannot be read: " + system_reason(reason),
                      "pipe a table into it, or name a file");
    }
    if (std::fflush(copy.get()) != 0) fail("written");
  } catch (const Error&) {
    remove();
    throw;
  }
}

StdinCopy::~StdinCopy() { remove(); }

void StdinCopy::remove() noexcept {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
  forget_temporary(path_);
}

}  // namespace lockstep::apps
