#include "collectives/self_communicator.hpp"

#include <cstring>

namespace lockstep::comm {

SelfCommunicator::SelfCommunicator() : Communicator(0, 1), place_{.host = host_name()} {}

// The front never calls these four for a group of one.
void SelfCommunicator::do_all_reduce(Elements, Op) {}
void SelfCommunicator::do_broadcast(Elements, int) {}
void SelfCommunicator::do_all_gather(Elements) {}
std::unique_ptr<Communicator> SelfCommunicator::do_split(const Subgroup&) { return nullptr; }

void SelfCommunicator::do_all_to_all(const std::byte* send, Elements receive) {
  std::memcpy(receive.data, send, receive.count * width(receive.type));
}

void SelfCommunicator::do_shift(const std::byte* send, Elements receive) {
  do_all_to_all(send, receive);
}

}  // namespace lockstep::comm
