#include "collectives/self_communicator.hpp"

namespace lockstep::comm {

SelfCommunicator::SelfCommunicator() : Communicator(0, 1), place_{.host = host_name()} {}

// The front never calls these for a group of one.
void SelfCommunicator::do_all_reduce(Elements, Op) {}
void SelfCommunicator::do_broadcast(Elements, int) {}
void SelfCommunicator::do_all_gather(Elements) {}

}  // namespace lockstep::comm
