#include "lockstep/collectives/socket.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <random>
#include <sstream>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"

namespace lockstep::comm {
namespace {

constexpr int probe_seconds = 1;  // between keepalive probes
constexpr int max_probes = 2;     // without an answer

[[noreturn]] void fail_to_resolve(const std::string& address, int code) {
  throw ConfigError("sockets: the address " + address + ": " + ::gai_strerror(code),
                    "look at the addresses of this host (`ip address`)");
}

/// An address as the system's functions take it; `text` is numeric.
std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> parsed(const std::string& text,
                                                            const std::string& port, int type) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = type;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(text.c_str(), port.c_str(), &hints, &found);
  if (code != 0) fail_to_resolve(text, code);
  return {found, ::freeaddrinfo};
}

}  // namespace

void fail_tcp(const std::string& what) {
  throw ConfigError("sockets: " + what + ": " + system_reason(errno),
                    "raise the limits of this host (`ulimit -n`)");
}

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

void Socket::set(int level, int name, int value) {
  if (::setsockopt(descriptor(), level, name, &value, sizeof value) != 0) fail_tcp("setsockopt");
}

void Socket::probe() {
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, probe_seconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, probe_seconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, max_probes);
}

void Socket::limit_silence(bool limits) {
  constexpr int milliseconds = (1 + max_probes) * probe_seconds * 1000;
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, limits ? milliseconds : 0);
}

Socket Socket::bound(int type) {
  Socket socket(::socket(AF_INET6, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.is_open()) {
    socket.set(IPPROTO_IPV6, IPV6_V6ONLY, 0);
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    const auto* address = reinterpret_cast<const sockaddr*>(&any);
    if (::bind(socket.descriptor(), address, sizeof any) != 0) fail_tcp("bind");
  } else {  // without IPv6
    socket = Socket(::socket(AF_INET, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket.is_open()) fail_tcp("socket");
    sockaddr_in any{};
    any.sin_family = AF_INET;
    const auto* address = reinterpret_cast<const sockaddr*>(&any);
    if (::bind(socket.descriptor(), address, sizeof any) != 0) fail_tcp("bind");
  }
  return socket;
}

Socket Socket::for_datagrams() { return bound(SOCK_DGRAM); }

Socket Socket::listening() {
  Socket socket = bound(SOCK_STREAM);
  if (::listen(socket.descriptor(), SOMAXCONN) != 0) fail_tcp("listen");
  return socket;
}

std::string Socket::port() const {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  auto* const pointer = reinterpret_cast<sockaddr*>(&address);
  if (::getsockname(descriptor(), pointer, &length) != 0) fail_tcp("getsockname");
  std::array<char, NI_MAXSERV> port{};
  const int code =
      ::getnameinfo(pointer, length, nullptr, 0, port.data(), port.size(), NI_NUMERICSERV);
  if (code != 0) fail_to_resolve("of a listening socket", code);
  return port.data();
}

Socket Socket::connecting(const std::string& address, const std::string& port) {
  const auto found = parsed(address, port, SOCK_STREAM);
  Socket socket(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.is_open() && errno == EAFNOSUPPORT) return {};  // a host without IPv6
  if (!socket.is_open()) fail_tcp("socket");
  socket.set(IPPROTO_TCP, TCP_NODELAY, 1);
  socket.probe();
  socket.limit_silence(true);
  const int failed = ::connect(socket.descriptor(), found->ai_addr, found->ai_addrlen);
  return failed != 0 && errno != EINPROGRESS ? Socket() : std::move(socket);
}

std::vector<std::string> own_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) fail_tcp("getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  std::vector<std::string> addresses;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const unsigned flags = entry->ifa_flags;
    if (entry->ifa_addr == nullptr || (flags & IFF_UP) == 0 || (flags & IFF_LOOPBACK) != 0)
      continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    std::array<char, NI_MAXHOST> text{};
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (::getnameinfo(entry->ifa_addr, length, text.data(), text.size(), nullptr, 0,
                      NI_NUMERICHOST) != 0) {
      continue;
    }
    const std::string address = text.data();
    if (address.find('%') == std::string::npos) addresses.push_back(address);
  }
  return addresses;
}

void send_datagram(const std::string& address, const std::string& port,
                   std::span<const std::byte> bytes) {
  const auto to = parsed(address, port, SOCK_DGRAM);
  const Socket socket(::socket(to->ai_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) return;
  static_cast<void>(::sendto(socket.descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL,
                             to->ai_addr, to->ai_addrlen));
}

std::vector<Contact> share_contacts(Communicator& wire, const std::string& port) {
  std::string mine;
  std::vector<std::string> own;
  together(wire, [&] {
    own = own_addresses();
    mine = std::to_string(wire.place().node) + ' ' + port;
    for (const auto& address : own) mine += ' ' + address;
  });
  std::vector<Contact> contacts;
  for (const auto& text : gather_text(wire, mine)) {
    Contact& contact = contacts.emplace_back();
    std::istringstream words(text);
    words >> contact.node >> contact.port;
    if (contact.node == wire.place().node) contact.addresses = {"127.0.0.1"};
    for (std::string address; words >> address;) {
      // An address that this host has too, such as that of a container bridge, is this host.
      const bool is_own = contains(own, address);
      if (!is_own) contact.addresses.push_back(address);
    }
  }
  return contacts;
}

std::array<std::uint64_t, 2> shared_key(Communicator& wire) {
  std::array<std::uint64_t, 2> key{};
  together(wire, [&] {
    if (wire.rank() != 0) return;
    std::random_device random;
    for (auto& word : key) word = std::uint64_t{random()} << 32 | random();
  });
  wire.broadcast(std::span<std::uint64_t>(key));
  return key;
}

}  // namespace lockstep::comm
