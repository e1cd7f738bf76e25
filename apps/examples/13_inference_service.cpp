// An inference service: reads a checkpoint of `lockstep train` or of a program, then answers each
// line of numbers, or of a table's columns, on stdin with a class and its probability.
//
//   13_inference_service FOLDER < EXAMPLES.csv
#include <algorithm>
#include <iostream>
#include <lockstep/data/table.hpp>
#include <lockstep/lockstep.hpp>
#include <lockstep/train/checkpoint.hpp>

using namespace lockstep;

namespace {

std::vector<float> features_in(const std::string& line, const train::CheckpointInfo& info) {
  const auto words = split_list(line);  // at commas
  if (info.table) return data::features_of(*info.table, words);
  std::vector<float> features;
  for (const auto& word : words) features.push_back(std::stof(word) / info.divide_by);
  return features;
}

void serve(comm::Communicator& comm, const std::vector<std::string>& arguments) {
  if (arguments.size() != 1) throw ConfigError("one argument is missing", "give a checkpoint");
  const auto saved = train::read_description(train::find_checkpoint(arguments[0]));
  train::Replica replica(saved, comm);
  const auto names = saved.info.class_names();  // empty: classes are numbers
  for (std::string line; std::getline(std::cin, line);) {
    try {
      const auto p = replica.probabilities(features_in(line, saved.info));
      const auto best = static_cast<std::size_t>(std::max_element(p.begin(), p.end()) - p.begin());
      std::cout << (names.empty() ? std::to_string(best) : names.at(best)) << ' ' << p.at(best)
                << std::endl;
    } catch (const Error& error) {  // the service goes on after a wrong line
      std::cout << "error: " << error.problem() << std::endl;
    } catch (const std::invalid_argument&) {
      std::cout << "error: not a number" << std::endl;
    }
  }
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, serve); }
