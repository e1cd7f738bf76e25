// together(): where one rank throws, all ranks throw its error. require_equal(): ranks compare
// settings. What ends the job after any other exception: lib/launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/collectives/communicator.hpp"

namespace lockstep::comm {

/// An error that all ranks throw at the same point, with the same code and text.
///
/// No rank waits in a collective: rank 0 prints the error, and every rank may finalize MPI and
/// return the code. Other exceptions do not guarantee this.
struct AgreedError : Error {
  using Error::Error;
};

/// Runs `local_work` on every rank; if it throws on any, every rank throws the same AgreedError.
///
/// For work that can fail on some ranks only: opening files, reading a configuration, selecting a
/// device. `local_work` must not communicate.
///
/// Code     that of the lowest failing rank; ExitCode::internal for exceptions other than Error.
/// Text     that of the lowest failing rank. Unless all ranks failed with the same text, it begins
///          with "rank R on HOST: " and, if several ranks failed, contains their number.
/// Ranks    collective; one all_agree if nothing fails.
void together(Communicator& comm, const std::function<void()>& local_work);

/// What ranks exchange within together(): no rank waits for one that has failed or ended its work.
class Exchange {
 public:
  explicit Exchange(Communicator& comm) : comm_(comm) {}

  int rank() const noexcept { return comm_.rank(); }
  int size() const noexcept { return comm_.size(); }

  /// The texts of all ranks in rank order, as gather_text() gives them, valid until the next call;
  /// nullopt, on all ranks and for good, once one of them has ended. A rank without the memory for
  /// them throws std::bad_alloc, and has then ended. Collective.
  std::optional<std::vector<std::string_view>> gather(std::string_view mine);

  /// For together(): this rank gathers no more. Throws the CommError that gather() has thrown, if
  /// any. Collective with gather() and end() of the others.
  void end();

 private:
  void grow(std::size_t longest);

  Communicator& comm_;
  std::vector<std::uint8_t> texts_ = {};
  bool has_ended_ = false;               // on some rank; the same on all ranks
  std::exception_ptr broken_ = nullptr;  // the CommError of comm_, which is unusable since
};

/// The same for work that ranks share: it communicates by the Exchange alone.
///
/// All ranks call its gather() equally often, in the same order, unless one fails or ends earlier.
/// Errors   those of the other together(); a CommError of gather() as it is.
/// Ranks    collective; without a failure one all_gather of 8 bytes per rank, and one all_agree.
void together(Communicator& comm, const std::function<void(Exchange&)>& shared_work);

/// The numbers of all ranks in rank order, on every rank. Collective.
std::vector<std::uint64_t> gather_number(Communicator& comm, std::uint64_t mine);

/// The same of a struct, which is copied as bytes. Collective.
template <class T>
std::vector<T> gather_each(Communicator& comm, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<std::size_t>(comm.size()));
  all[static_cast<std::size_t>(comm.rank())] = mine;
  const auto bytes = std::as_writable_bytes(std::span(all));
  comm.all_gather(std::span(&bytes, 1));
  return all;
}

/// The texts of all ranks in rank order, on every rank. Collective.
///
/// Texts may differ in length, be empty, and contain any bytes. Transfers size() times the longest.
std::vector<std::string> gather_text(Communicator& comm, const std::string& mine);

/// The text of `root`, on every rank; texts of other ranks are ignored. Collective.
std::string broadcast_text(Communicator& comm, std::string text, int root = 0);

/// Settings and their values, as text.
using KeyValues = std::vector<std::pair<std::string, std::string>>;

/// Throws the same AgreedError, with `code`, on every rank unless all pass the same pairs.
///
/// `what` is the subject of the message, e.g. "the configuration". The message contains the keys
/// that differ, the deviating ranks with their hosts and values, and the majority's value; without
/// a majority, all groups of ranks. The order of the pairs does not matter; keys must be unique; a
/// missing key counts as different. `remedy` is appended to the message.
/// Ranks    collective; if all are equal, one all_gather of 8 bytes per rank.
void require_equal(Communicator& comm, const std::string& what, const KeyValues& mine,
                   const std::string& remedy = "", ExitCode code = ExitCode::usage);

}  // namespace lockstep::comm
