// An inference service: reads a checkpoint of `lockstep train` or of a program, then answers each
// line on stdin with a class and its probability. A line has numbers, or a table's columns, without
// quotes, separated by commas.
//
//   13_inference_service FOLDER < EXAMPLES.csv
#include <algorithm>
#include <cmath>
#include <iostream>
#include <lockstep/data/table.hpp>
#include <lockstep/lockstep.hpp>
#include <lockstep/train/checkpoint.hpp>

using namespace lockstep;

namespace {

float finite_number(const std::string& word) {
  const auto number = number_in<float>(word);
  if (number && std::isfinite(*number)) return *number;
  throw DataError(in_quotes(word) + " is not a finite number (in float32)");
}

/// The input of the network, of exactly one example.
std::vector<float> features_in(const std::string& line, const train::SavedNetwork& saved) {
  const auto words = split_list(line);  // at commas
  if (words.empty()) throw DataError("the line is empty");
  const float divide_by = saved.info.divide_by;
  if (saved.info.table) return data::features_of(*saved.info.table, divide_by, words);
  const std::size_t expected = saved.shape.features;
  if (words.size() != expected) {
    throw DataError(counted(words.size(), "number") + ", where an example has " +
                    std::to_string(expected));
  }
  std::vector<float> features;
  for (const auto& word : words) features.push_back(finite_number(word) / divide_by);
  return features;
}

void serve(comm::Communicator& comm, const std::vector<std::string>& arguments) {
  if (comm.size() > 1) throw ConfigError("only one rank can read stdin", "start one rank");
  if (arguments.size() != 1) {
    throw ConfigError(counted(arguments.size(), "argument"), "give one argument, a checkpoint");
  }
  const auto saved = train::read_description(train::find_checkpoint(arguments[0]));
  const auto* loss = nn::built_in_loss<float>(saved.loss);  // null: not built in
  if (loss != nullptr && loss->target() != nn::TargetKind::label) {
    throw ConfigError(arguments[0] + ": does not predict classes: its loss is " + saved.loss,
                      "give another checkpoint, or use Replica::outputs() or probabilities()");
  }
  train::Replica replica(saved, comm);
  const auto names = saved.info.class_names();  // empty: classes are numbers
  std::string line;
  for (int at = 1; std::getline(std::cin, line); ++at) {
    try {
      const auto p = replica.probabilities(features_in(line, saved));
      const auto best = static_cast<std::size_t>(std::max_element(p.begin(), p.end()) - p.begin());
      std::cout << (names.empty() ? std::to_string(best) : names.at(best)) << ' ' << p.at(best)
                << std::endl;
    } catch (const Error& error) {  // the service goes on after a wrong line
      std::cout << "error: line " << at << ": " << error.problem() << std::endl;
    } catch (const std::exception& error) {
      std::cout << "error: line " << at << ": " << error.what() << std::endl;
    }
  }
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, serve); }
