// Sockets of TCP, which do not block.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lockstep::comm {

/// Owns a socket. All functions are local.
///
/// Errors   throws ConfigError with the system's reason where a socket cannot be made or set.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }

  /// Listens on all addresses of this host, on a port of the system's choice.
  static Socket listening();

  /// Begins to connect; poll() reports the end, and SO_ERROR an error. Returns a closed socket, and
  /// sets errno, if that fails at once. Of the new connection, probe() and limit_silence() hold.
  static Socket connecting(const std::string& address, const std::string& port);

  int descriptor() const noexcept { return descriptor_; }
  bool is_open() const noexcept { return descriptor_ >= 0; }
  void close() noexcept;

  /// The port on this host, as text.
  std::string port() const;

  /// Lets the system end the connection when the peer's host does not answer for 3 seconds, though
  /// nothing was sent to it.
  void probe();

  /// Limits the time until the peer's host acknowledges what was sent to 3 seconds, or to the
  /// system's some 15 minutes. A peer that is busy, and has no room for more, counts as silent.
  void limit_silence(bool limits);

 private:
  void set(int level, int name, int value);

  int descriptor_ = -1;
};

/// Addresses of this host's network interfaces, as text; not of loopback, nor link-local ones.
std::vector<std::string> own_addresses();

/// What the system says of an error number.
std::string reason(int error);

/// True if a call of a socket that does not block would have, or was interrupted.
bool would_block(int error);

}  // namespace lockstep::comm
