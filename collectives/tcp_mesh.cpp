#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <numeric>
#include <thread>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/tcp.hpp"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;

// For a connection to one address. Later ones go to an address that has worked.
constexpr auto first_limit = std::chrono::milliseconds(5000);
constexpr auto later_limit = std::chrono::milliseconds(1200);

constexpr auto start_limit = std::chrono::seconds(30);  // for all of the first connections

// If the network is cut, the part with the lowest rank goes on first: the others wait this long.
constexpr auto pause_without_first = std::chrono::milliseconds(2500);

/// Sends the first bytes on a connection; its buffer has room for them. poll() reports a failure.
void send_first(const Socket& socket, std::span<const std::byte> bytes) {
  static_cast<void>(::send(socket.descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
}

/// Receives the available ones of `bytes` after the first `received`; false if the connection
/// ended.
bool receive_into(const Socket& socket, std::span<std::byte> bytes, std::size_t& received) {
  while (received < bytes.size()) {
    const auto rest = bytes.subspan(received);
    const ssize_t now = ::recv(socket.descriptor(), rest.data(), rest.size(), 0);
    if (now < 0 && would_block(errno)) return true;
    if (now <= 0) return false;
    received += static_cast<std::size_t>(now);
  }
  return true;
}

void poll_until(std::span<pollfd> polled, Clock::time_point limit) {
  int milliseconds = -1;
  if (limit != Clock::time_point::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(limit - Clock::now()).count();
    milliseconds = static_cast<int>(std::max<std::int64_t>(left, 0));
  }
  if (::poll(polled.data(), polled.size(), milliseconds) < 0) {
    if (errno == EINVAL) fail_tcp("poll");  // more descriptors than permitted
    for (auto& one : polled) one.revents = 0;
  }
}

[[noreturn]] void lose(int member, const std::string& how) {
  throw RankLost("rank " + std::to_string(member) + ": " + how);
}

}  // namespace

/// The first bytes on a connection.
struct TcpMesh::Hello {
  std::array<std::uint64_t, 2> key;
  std::uint64_t number;  // of the group
  std::uint64_t rank;
};

/// An accepted connection whose Hello has not arrived.
struct TcpMesh::Guest {
  Socket socket;
  Hello hello = {};
  std::size_t received = 0;
};

TcpMesh::TcpMesh(Communicator& wire)
    : rank_(wire.rank()), key_(shared_key(wire)), peers_(static_cast<std::size_t>(wire.size())) {
  together(wire, [&] { listener_ = Socket::listening(); });
  const auto contacts = share_contacts(wire, listener_.port());
  std::transform(contacts.begin(), contacts.end(), peers_.begin(),
                 [](const Contact& contact) { return Peer{contact}; });
  std::vector<int> all(peers_.size());
  std::iota(all.begin(), all.end(), 0);
  together(wire, [&] {
    connect(all);
    const auto [first, ignored] =
        std::mismatch(all.begin(), all.end(), members_.begin(), members_.end());
    if (first == all.end()) return;
    throw ConfigError("TCP: rank " + std::to_string(*first) + " is not reached from " + host_name(),
                      "let the hosts' firewalls pass TCP between the ranks of a job");
  });
}

void TcpMesh::connect_living() { connect(members_); }

/// One attempt to connect the group `number`: all members agree on it, or a later number is next.
class TcpMesh::Attempt {
 public:
  Attempt(TcpMesh& mesh, std::uint64_t number, const std::vector<int>& candidates);

  /// True if all candidates that are left have agreed on the group.
  bool run();

  /// After run(): the candidates that are left, and the number of the next attempt.
  std::vector<int> candidates() const;
  std::uint64_t next() const noexcept { return next_; }

 private:
  using View = std::vector<std::uint8_t>;  // 1 for each rank that is left, else 0

  struct Candidate {
    int rank;
    enum class State { connecting, connected, lost } state = State::connecting;
    std::size_t address = 0;
    Clock::time_point limit = {};
    View view = {};            // that it has sent
    std::size_t received = 0;  // bytes of `view`

    bool has_sent_view() const { return received == view.size(); }
  };
  using State = Candidate::State;

  void try_address(Candidate& candidate);
  void try_next_address(Candidate& candidate);
  void check_connection(Candidate& candidate);
  void accept_guests();
  void receive_hello(Guest& guest);
  void receive_view(Candidate& candidate);
  void send_views();
  void wait();
  bool is_over() const;
  void drop_missing();
  /// A host that refuses a connection is reachable; any other error may be a cut network.
  void note_failure(int error) { mesh_.may_be_cut_off_ |= error != ECONNREFUSED; }
  void restart() { next_ = std::max(next_, number_ + 1); }
  View view() const;

  TcpMesh& mesh_;
  std::uint64_t number_;
  std::uint64_t next_;
  std::vector<Candidate> others_;
  bool views_are_sent_ = false;
  Clock::time_point limit_;  // of the whole attempt
};

TcpMesh::Attempt::Attempt(TcpMesh& mesh, std::uint64_t number, const std::vector<int>& candidates)
    : mesh_(mesh),
      number_(number),
      next_(number),
      limit_(mesh.number_ == 0 ? Clock::now() + start_limit : Clock::time_point::max()) {
  for (const int rank : candidates) {
    if (rank == mesh.rank_) continue;
    Candidate candidate{.rank = rank};
    candidate.view.resize(mesh.peers_.size());
    others_.push_back(std::move(candidate));
  }
  for (Candidate& other : others_) try_address(other);
}

std::vector<int> TcpMesh::Attempt::candidates() const {
  std::vector<int> left = {mesh_.rank_};
  for (const Candidate& other : others_) {
    if (other.state != State::lost) left.push_back(other.rank);
  }
  std::sort(left.begin(), left.end());
  return left;
}

TcpMesh::Attempt::View TcpMesh::Attempt::view() const {
  View view(mesh_.peers_.size());
  for (const int rank : candidates()) view[static_cast<std::size_t>(rank)] = 1;
  return view;
}

void TcpMesh::Attempt::try_address(Candidate& candidate) {
  Peer& peer = mesh_.peer(candidate.rank);
  candidate.limit = Clock::now() + (mesh_.number_ == 0 ? first_limit : later_limit);
  for (; candidate.address < peer.contact.addresses.size(); ++candidate.address) {
    peer.out = Socket::connecting(peer.contact.addresses[candidate.address], peer.contact.port);
    if (peer.out.is_open()) return;
    note_failure(errno);
  }
  candidate.state = State::lost;
  peer.out.close();
}

void TcpMesh::Attempt::try_next_address(Candidate& candidate) {
  ++candidate.address;
  try_address(candidate);
}

/// Called when the connection that this process opened is ready, or has failed.
void TcpMesh::Attempt::check_connection(Candidate& candidate) {
  Peer& peer = mesh_.peer(candidate.rank);
  if (candidate.state == State::connected) return restart();  // the peer has closed it
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(peer.out.descriptor(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) {
    note_failure(error);
    return try_next_address(candidate);
  }
  candidate.state = State::connected;
  peer.contact.addresses = {peer.contact.addresses[candidate.address]};
  candidate.address = 0;
  const Hello hello = {mesh_.key_, number_, static_cast<std::uint64_t>(mesh_.rank_)};
  send_first(peer.out, std::as_bytes(std::span(&hello, 1)));
}

void TcpMesh::Attempt::accept_guests() {
  for (;;) {
    Socket socket(
        ::accept4(mesh_.listener_.descriptor(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.is_open() && (errno == EMFILE || errno == ENFILE)) fail_tcp("accept");
    if (!socket.is_open()) return;
    socket.probe();
    mesh_.guests_.push_back({.socket = std::move(socket)});
  }
}

void TcpMesh::Attempt::receive_hello(Guest& guest) {
  const auto bytes = std::as_writable_bytes(std::span(&guest.hello, 1));
  if (!receive_into(guest.socket, bytes, guest.received)) return guest.socket.close();
  if (guest.received < bytes.size()) return;
  const Hello& hello = guest.hello;
  if (hello.key != mesh_.key_ || hello.number < number_) return guest.socket.close();
  const auto known = std::find_if(others_.begin(), others_.end(), [&](const Candidate& other) {
    return static_cast<std::uint64_t>(other.rank) == hello.rank && other.state != State::lost;
  });
  if (known == others_.end()) {  // kept open: it would try again after a close
    mesh_.ignored_.push_back(std::move(guest.socket));
    return;
  }
  Peer& peer = mesh_.peer(known->rank);
  peer.in = std::move(guest.socket);
  peer.in_number = hello.number;
  next_ = std::max(next_, hello.number);
}

void TcpMesh::Attempt::receive_view(Candidate& candidate) {
  if (candidate.has_sent_view()) return restart();  // the peer has closed the connection
  const auto bytes = std::as_writable_bytes(std::span(candidate.view));
  if (!receive_into(mesh_.peer(candidate.rank).in, bytes, candidate.received)) restart();
}

void TcpMesh::Attempt::send_views() {
  const bool is_settled = std::none_of(others_.begin(), others_.end(), [](const Candidate& other) {
    return other.state == State::connecting;
  });
  if (views_are_sent_ || !is_settled) return;
  const View mine = view();
  for (const Candidate& other : others_) {
    if (other.state != State::lost) {
      send_first(mesh_.peer(other.rank).out, std::as_bytes(std::span(mine)));
    }
  }
  views_are_sent_ = true;
}

/// True if every candidate that is left has sent its view.
bool TcpMesh::Attempt::is_over() const {
  return views_are_sent_ && std::all_of(others_.begin(), others_.end(), [](const Candidate& other) {
           return other.state == State::lost || other.has_sent_view();
         });
}

/// Waits until something happens on a socket or a limit is over, and handles it.
void TcpMesh::Attempt::wait() {
  std::vector<pollfd> polled = {{mesh_.listener_.descriptor(), POLLIN, 0}};
  const auto add = [&](int descriptor, int events) {  // poll() ignores negative descriptors
    polled.push_back({descriptor, static_cast<short>(events), 0});
  };
  auto until = limit_;
  for (const Guest& guest : mesh_.guests_) add(guest.socket.descriptor(), POLLIN);
  for (const Candidate& other : others_) {
    const Peer& peer = mesh_.peer(other.rank);
    const bool connects = other.state == State::connecting;
    if (connects) until = std::min(until, other.limit);
    add(peer.out.descriptor(), connects ? POLLOUT : POLLRDHUP);
    const bool has_in = peer.in_number == number_ && other.state != State::lost;
    add(has_in ? peer.in.descriptor() : -1, other.has_sent_view() ? POLLRDHUP : POLLIN);
  }
  const std::size_t guests = mesh_.guests_.size();
  poll_until(polled, until);

  const auto is_ready = [&](std::size_t i) { return polled[i].revents != 0; };
  for (std::size_t i = 0; i < others_.size(); ++i) {
    Candidate& other = others_[i];
    if (is_ready(1 + guests + 2 * i)) {
      check_connection(other);
    } else if (other.state == State::connecting && Clock::now() >= other.limit) {
      note_failure(ETIMEDOUT);
      try_next_address(other);
    }
    if (is_ready(2 + guests + 2 * i)) receive_view(other);
  }
  for (std::size_t i = 0; i < guests; ++i) {  // last: they replace connections that were polled
    if (is_ready(1 + i)) receive_hello(mesh_.guests_[i]);
  }
  std::erase_if(mesh_.guests_, [](const Guest& guest) {
    return !guest.socket.is_open() || guest.received == sizeof(Hello);
  });
  if (is_ready(0)) accept_guests();
}

/// Drops the candidates that others have dropped, as far as these have sent their views.
void TcpMesh::Attempt::drop_missing() {
  for (const Candidate& other : others_) {
    if (other.state == State::lost || !other.has_sent_view()) continue;
    for (Candidate& third : others_) {
      if (other.view[static_cast<std::size_t>(third.rank)] == 0) third.state = State::lost;
    }
  }
}

bool TcpMesh::Attempt::run() {
  for (;;) {
    send_views();
    if (next_ != number_) {
      // Ranks that have dropped a silent one, and ranks that have not, would otherwise restart each
      // other for ever. Any drop ends the first attempts with an error. In later groups a rank may
      // drop a living one because it is itself cut off, so there only a complete exchange counts.
      if (mesh_.number_ == 0) drop_missing();
      return false;
    }
    if (is_over()) break;
    if (Clock::now() >= limit_) {  // drops candidates that have sent nothing
      for (Candidate& other : others_) {
        if (other.received == 0) other.state = State::lost;
      }
      restart();
      return false;
    }
    wait();
  }
  const View mine = view();
  const bool agreed = std::all_of(others_.begin(), others_.end(), [&](const Candidate& other) {
    return other.state == State::lost || other.view == mine;
  });
  drop_missing();
  if (!agreed) restart();
  return agreed;
}

void TcpMesh::connect(std::vector<int> candidates) {
  may_be_cut_off_ = false;
  for (std::uint64_t number = number_ + 1;;) {
    for (Peer& peer : peers_) {  // leaves the previous group; its other members then leave it too
      peer.out.close();
      if (peer.in_number < number) peer.in.close();
    }
    Attempt attempt(*this, number, candidates);
    const bool agreed = attempt.run();
    candidates = attempt.candidates();
    if (agreed) {
      const bool lost_the_first = !members_.empty() && members_.front() != candidates.front();
      if (lost_the_first && may_be_cut_off_) std::this_thread::sleep_for(pause_without_first);
      number_ = number;
      members_ = std::move(candidates);
      for (const int member : members_) {
        if (member != rank_) peer(member).out.limit_silence(false);
      }
      return;
    }
    number = attempt.next();
  }
}

namespace {

/// Precedes the data of a transfer.
struct Header {
  std::uint64_t call;
  std::uint64_t bytes;
};

constexpr std::uint64_t end_of_stream = ~std::uint64_t{0};  // the call of the last header

std::uint64_t to_number(const TcpMesh::Call& call) {
  return call.number << 24 | static_cast<std::uint64_t>(call.kind) << 16 | call.detail;
}

/// "all_reduce (sum), call 7"
std::string call_text(std::uint64_t number) {
  static constexpr std::array kinds = {"all_reduce", "broadcast", "all_gather", "all_to_all",
                                       "shift"};
  static constexpr std::array ops = {" (sum)", " (min)", " (max)"};
  const auto kind = static_cast<std::size_t>(number >> 16 & 0xFF);
  const auto detail = static_cast<std::size_t>(number & 0xFFFF);
  std::string text = kind < kinds.size() ? kinds[kind] : "an unknown collective";
  if (kind == static_cast<std::size_t>(TcpMesh::Kind::all_reduce) && detail < ops.size()) {
    text += ops[detail];
  }
  if (kind == static_cast<std::size_t>(TcpMesh::Kind::broadcast)) {
    text += " (root " + std::to_string(detail) + ")";
  }
  return text + ", call " + std::to_string(number >> 24);
}

enum class Incoming { nothing, data, end };

/// Checks a connection for data, without receiving it.
Incoming incoming_on(const Socket& socket) {
  std::byte next{};
  const ssize_t bytes = ::recv(socket.descriptor(), &next, 1, MSG_PEEK);
  if (bytes > 0) return Incoming::data;
  return bytes < 0 && would_block(errno) ? Incoming::nothing : Incoming::end;
}

}  // namespace

/// One transfer under way.
class TcpMesh::Stream {
 public:
  Stream(TcpMesh& mesh, const Call& call, const Transfer& transfer)
      : out_(mesh.peer(transfer.member).out.descriptor()),
        in_(mesh.peer(transfer.member).in.descriptor()),
        header_{to_number(call), transfer.send.size()},
        expected_{to_number(call), transfer.receive.size()},
        transfer_(transfer) {
    if (transfer.send.empty()) sent_ = sizeof(Header);
    if (transfer.receive.empty()) received_ = sizeof(Header);
  }

  int member() const noexcept { return transfer_.member; }
  bool sends() const noexcept { return sent_ < sizeof(Header) + transfer_.send.size(); }
  bool receives() const noexcept { return received_ < sizeof(Header) + transfer_.receive.size(); }

  /// Moves as many bytes as is possible at once. Returns false if none were moved.
  bool move() {
    const bool sent = sends() && send();
    const bool received = receives() && receive();
    return sent || received;
  }

 private:
  template <class Data>
  std::array<iovec, 2> rest_of(std::size_t done, Data* header, std::size_t size,
                               const std::byte* data) {
    const std::size_t of_header = std::min(done, sizeof(Header));
    const std::size_t of_data = done - of_header;
    auto* const first = reinterpret_cast<std::byte*>(header) + of_header;
    auto* const second = const_cast<std::byte*>(data) + of_data;  // iovec serves both directions
    return {iovec{first, sizeof(Header) - of_header}, iovec{second, size - of_data}};
  }

  static msghdr message_of(std::array<iovec, 2>& parts) {
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    return message;
  }

  bool send() {
    auto parts = rest_of(sent_, &header_, transfer_.send.size(), transfer_.send.data());
    const msghdr message = message_of(parts);
    const ssize_t bytes = ::sendmsg(out_, &message, MSG_NOSIGNAL);
    if (bytes < 0 && would_block(errno)) return false;
    if (bytes < 0) lose(member(), system_reason(errno));
    sent_ += static_cast<std::size_t>(bytes);
    return true;
  }

  bool receive() {
    // Not beyond the header until it has been checked: the data may be shorter.
    const bool in_header = received_ < sizeof(Header);
    const std::size_t size = in_header ? 0 : transfer_.receive.size();
    auto parts = rest_of(received_, &arrived_, size, transfer_.receive.data());
    msghdr message = message_of(parts);
    const ssize_t bytes = ::recvmsg(in_, &message, 0);
    if (bytes < 0 && would_block(errno)) return false;
    if (bytes <= 0) lose(member(), bytes == 0 ? "the connection was closed" : system_reason(errno));
    received_ += static_cast<std::size_t>(bytes);
    if (in_header && received_ == sizeof(Header)) check();
    return true;
  }

  void check() const {
    if (arrived_.call == end_of_stream) lose(member(), "it has ended its part");
    if (arrived_.call == expected_.call && arrived_.bytes == expected_.bytes) return;
    const auto text = [](const Header& header) {
      return std::to_string(header.bytes) + " bytes for " + call_text(header.call);
    };
    throw CommError("collective mismatch: rank " + std::to_string(member()) + " sends " +
                    text(arrived_) + ", but this one expects " + text(expected_));
  }

  int out_;
  int in_;
  Header header_;
  Header expected_;
  Header arrived_ = {};
  Transfer transfer_;
  std::size_t sent_ = 0;      // with the header
  std::size_t received_ = 0;  // with the header
};

TcpMesh::~TcpMesh() {
  const Header end = {end_of_stream, 0};
  for (const int member : members_) {
    if (member != rank_) send_first(peer(member).out, std::as_bytes(std::span(&end, 1)));
  }
}

void TcpMesh::transfer(const Call& call, std::span<const Transfer> transfers) {
  std::vector<Stream> streams;
  streams.reserve(transfers.size());
  for (const Transfer& transfer : transfers) streams.emplace_back(*this, call, transfer);
  for (;;) {
    bool moved = false;
    for (Stream& stream : streams) moved = stream.move() || moved;
    const bool is_done = std::none_of(streams.begin(), streams.end(), [](const Stream& stream) {
      return stream.sends() || stream.receives();
    });
    if (is_done) return;
    if (!moved) wait(streams);
  }
}

/// Waits until a stream can move. Throws RankLost if another member has closed its connection, or
/// if the connection has failed from a member that this rank only sends to: what is sent to a lost
/// host may fail many minutes later. A member with data on its connection does not count as closed,
/// since it may have ended normally after sending: the member that waits for it reports its loss.
void TcpMesh::wait(std::span<const Stream> streams) {
  std::vector<pollfd> polled;
  std::vector<int> sent_to;  // of each pair in `polled`; -1: also received from
  std::vector<int> others;   // members without an unfinished stream
  for (const int member : members_) {
    if (member != rank_) others.push_back(member);
  }
  for (const Stream& stream : streams) {
    if (!stream.sends() && !stream.receives()) continue;
    const Peer& peer = this->peer(stream.member());
    std::erase(others, stream.member());
    polled.push_back({peer.out.descriptor(), static_cast<short>(stream.sends() ? POLLOUT : 0), 0});
    polled.push_back({peer.in.descriptor(), static_cast<short>(stream.receives() ? POLLIN : 0), 0});
    sent_to.push_back(stream.receives() ? -1 : stream.member());
  }
  for (const int other : others) {
    const Socket& in = peer(other).in;
    const Incoming incoming = incoming_on(in);
    if (incoming == Incoming::end) lose(other, "the connection was closed");
    if (incoming == Incoming::nothing) polled.push_back({in.descriptor(), POLLRDHUP, 0});
  }
  poll_until(polled, Clock::time_point::max());
  for (std::size_t i = 0; i < sent_to.size(); ++i) {
    const pollfd& in = polled[2 * i + 1];
    if (sent_to[i] >= 0 && (in.revents & (POLLERR | POLLHUP)) != 0) {
      lose(sent_to[i], "the connection has failed");
    }
  }
}

}  // namespace lockstep::comm
