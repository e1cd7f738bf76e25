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

void Communicator::require_blocks(std::size_t count) const {
  if (count % static_cast<std::size_t>(size_) != 0) {
    throw std::invalid_argument("all_gather: " + std::to_string(count) +
                                " elements are not one equal block for each of " +
                                std::to_string(size_) + " ranks");
  }
}

}  // namespace lockstep::comm
