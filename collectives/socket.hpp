// Non-blocking sockets, and the addresses at which the ranks of a group reach each other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/files.hpp"
#include "lockstep/collectives/communicator.hpp"

namespace lockstep::comm {

/// Owns a socket. All functions are local.
///
/// Errors   throws ConfigError with the system's reason where a socket cannot be made or set.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}

  /// Listens on all addresses of this host, on a port of the system's choice.
  static Socket listening();

  /// Receives datagrams (UDP) on all addresses of this host, on a port of the system's choice.
  static Socket for_datagrams();

  /// Begins to connect; poll() reports the end, and SO_ERROR an error. Returns a closed socket, and
  /// sets errno, if that fails at once. The connection has probe() and limit_silence(true).
  static Socket connecting(const std::string& address, const std::string& port);

  int descriptor() const noexcept { return descriptor_.number(); }
  bool is_open() const noexcept { return descriptor_.is_open(); }
  void close() noexcept { descriptor_.close(); }

  /// The port on this host, as text.
  std::string port() const;

  /// Makes the system end an idle connection when the peer's host does not answer for 3 seconds.
  void probe();

  /// Limits the time until the peer's host acknowledges what was sent to 3 seconds, or to the
  /// system's some 15 minutes. A peer that is busy, and has no room for more, counts as silent.
  void limit_silence(bool limits);

 private:
  /// Of TCP or UDP, on all addresses and a free port.
  static Socket bound(int type);
  void set(int level, int name, int value);

  Descriptor descriptor_;
};

/// Addresses of this host's network interfaces, as text; not of loopback, nor link-local ones.
std::vector<std::string> own_addresses();

/// Sends a datagram to a socket of for_datagrams(). It may be lost. Local.
void send_datagram(const std::string& address, const std::string& port,
                   std::span<const std::byte> bytes);

/// Where a rank is reached.
struct Contact {
  int node = 0;  ///< as its Place::node
  std::string port;
  std::vector<std::string> addresses;  ///< most likely first; some may be unreachable
};

/// Where the ranks of `wire` are reached, by rank, as seen from this host; `port` is this rank's.
/// Collective.
std::vector<Contact> share_contacts(Communicator& wire, const std::string& port);

/// A random key, the same on all ranks of `wire`. Collective.
std::array<std::uint64_t, 2> shared_key(Communicator& wire);

/// True if a call failed because it would have blocked, or was interrupted.
bool would_block(int error);

/// Throws ConfigError: `what`, and the reason in errno.
[[noreturn]] void fail_tcp(const std::string& what);

}  // namespace lockstep::comm
