#include "collectives/communicator.hpp"

#include <unistd.h>

#include <array>
#include <stdexcept>

namespace lockstep::comm {

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

void Communicator::require_blocks(const char* collective, std::size_t count) const {
  if (count % static_cast<std::size_t>(size_) != 0) {
    throw std::invalid_argument(std::string(collective) + ": " + std::to_string(count) +
                                " elements are not one equal block for each of " +
                                std::to_string(size_) + " ranks");
  }
}

void Communicator::require_equal_lengths(std::size_t send, std::size_t receive) {
  if (send == receive) return;
  throw std::invalid_argument("all_to_all: " + std::to_string(send) + " elements to send, but " +
                              std::to_string(receive) + " to receive");
}

}  // namespace lockstep::comm
