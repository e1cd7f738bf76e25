// An inference service: reads a checkpoint of `lockstep train` or of a program, then answers each
// line of numbers on stdin with a class and its probability.
//
//   13_inference_service FOLDER < EXAMPLES.csv
#include <algorithm>
#include <iostream>
#include <lockstep/lockstep.hpp>
#include <lockstep/train/checkpoint.hpp>
#include <sstream>

using namespace lockstep;

namespace {

std::vector<float> numbers(std::string line, float divide_by) {
  std::replace(line.begin(), line.end(), ',', ' ');
  std::istringstream words(line);
  std::vector<float> features;
  for (float number = 0; words >> number;) features.push_back(number / divide_by);
  return features;
}

void serve(comm::Communicator& comm, const std::vector<std::string>& arguments) {
  if (arguments.size() != 1) throw ConfigError("one argument is missing", "give a checkpoint");
  const auto saved = train::read_description(train::find_checkpoint(arguments[0]));
  train::Replica replica(saved, comm);
  const auto names = saved.info.class_names();  // empty: classes are numbers
  for (std::string line; std::getline(std::cin, line);) {
    try {
      const auto p = replica.probabilities(numbers(line, saved.info.divide_by));
      const auto best = static_cast<std::size_t>(std::max_element(p.begin(), p.end()) - p.begin());
      std::cout << (names.empty() ? std::to_string(best) : names.at(best)) << ' ' << p.at(best)
                << std::endl;
    } catch (const ConfigError& error) {  // another number of features: the service goes on
      std::cout << "error: " << error.problem() << std::endl;
    }
  }
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, serve); }
