#include "tests/support/communicator_contract.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <iterator>
#include <new>
#include <numeric>
#include <span>
#include <stdexcept>
#include <thread>
#include <type_traits>

#include "lockstep/base/aligned.hpp"
#include "lockstep/collectives/agreement.hpp"

namespace lockstep::test {
namespace {

using comm::AgreedError;
using comm::Communicator;
using comm::Op;

// Around the sizes where backends change their ways: 256 bytes, a cache line, a power of two.
constexpr std::size_t counts[] = {0, 1, 31, 33, 257, 1023, 1025, 70001};

/// The counts for elements of type T: the longest for float alone, since blocks move as bytes.
template <class T>
std::span<const std::size_t> counts_of() {
  return std::span(counts).first(std::size(counts) - (std::is_same_v<T, float> ? 0 : 1));
}

// Small integers: exact in every type and in any order of summation (8 ranks: at most 252).
template <class T>
T element(int rank, std::size_t i) {
  return static_cast<T>(static_cast<std::size_t>(rank + 1) * (i % 7 + 1));
}

template <class T>
std::vector<T> elements(int rank, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = element<T>(rank, i);
  return values;
}

std::string label(const char* what, comm::Type type, std::size_t count) {
  return std::string(what) + " type " + std::to_string(static_cast<int>(type)) + " count " +
         std::to_string(count);
}

template <class T>
void reduce_type(Communicator& comm, Findings& findings) {
  const int ranks = comm.size();
  for (const std::size_t count : counts_of<T>()) {
    for (const Op op : {Op::sum, Op::min, Op::max}) {
      auto values = elements<T>(comm.rank(), count);
      comm.all_reduce(std::span(values), op);
      const int factor = op == Op::sum ? ranks * (ranks + 1) / 2 : op == Op::min ? 1 : ranks;
      findings.expect(values == elements<T>(factor - 1, count),
                      label("all_reduce", comm::TypeOf<T>::value, count));
    }
  }
}

template <class T>
void broadcast_type(Communicator& comm, Findings& findings) {
  for (const std::size_t count : counts_of<T>()) {
    for (int root = 0; root < comm.size(); ++root) {
      auto values = elements<T>(comm.rank(), count);
      comm.broadcast(std::span(values), root);
      findings.expect(values == elements<T>(root, count),
                      label("broadcast", comm::TypeOf<T>::value, count));
    }
  }
}

template <class T>
void gather_type(Communicator& comm, Findings& findings) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  for (const std::size_t count : counts_of<T>()) {
    std::vector<T> values(ranks * count);
    std::vector<T> expected;
    for (int rank = 0; rank < comm.size(); ++rank) {
      const auto block = elements<T>(rank, count);
      expected.insert(expected.end(), block.begin(), block.end());
      const auto at = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank) * count);
      if (rank == comm.rank()) std::copy(block.begin(), block.end(), values.begin() + at);
    }
    comm.all_gather(std::span(values));
    findings.expect(values == expected, label("all_gather", comm::TypeOf<T>::value, count));
  }
}

/// A grouped all_gather leaves what one all_gather of each buffer would; with as many buffers as
/// there are `lengths` (bytes a rank), in memory of `memory`.
void grouped_gather_of(Communicator& comm, Findings& findings,
                       const std::vector<std::size_t>& lengths, std::pmr::memory_resource& memory) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const auto byte_of = [](std::size_t buffer, int rank, std::size_t i) {
    return static_cast<std::byte>(37 * buffer + 11 * static_cast<std::size_t>(rank) + i % 251);
  };
  std::vector<AlignedBuffer<std::byte>> storage;
  std::vector<std::span<std::byte>> buffers;
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    storage.emplace_back(ranks * lengths[b], memory);
    buffers.push_back(storage.back().span());
    const auto mine = buffers[b].subspan(static_cast<std::size_t>(comm.rank()) * lengths[b]);
    for (std::size_t i = 0; i < lengths[b]; ++i) mine[i] = byte_of(b, comm.rank(), i);
  }
  comm.all_gather(buffers);
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    bool right = true;
    for (int rank = 0; rank < comm.size(); ++rank) {
      const auto block = buffers[b].subspan(static_cast<std::size_t>(rank) * lengths[b]);
      for (std::size_t i = 0; i < lengths[b]; ++i) right &= block[i] == byte_of(b, rank, i);
    }
    findings.expect(right, label("grouped all_gather", comm::Type::u8, lengths[b]));
  }
  while (!storage.empty()) storage.pop_back();  // the last first: what memory() takes back
}

void grouped_all_gather(Communicator& comm, Findings& findings) {
  const std::vector<std::vector<std::size_t>> groups = {
      {},
      {0},
      {0, 0},
      {7},
      {0, 257, 0},
      {1, 3, 5},
      {4096, 1, 0, 70001},
      std::vector<std::size_t>(40, 9),  // more than a slot has room for
      std::vector<std::size_t>(40, 6),  // but short enough to travel in it
      std::vector<std::size_t>(70, 333)};
  for (const auto& lengths : groups) {
    grouped_gather_of(comm, findings, lengths, *std::pmr::new_delete_resource());
    for (int round = 0; round < 2; ++round) {
      grouped_gather_of(comm, findings, lengths, comm.memory());
    }
  }
  if (comm.size() == 1) return;
  std::vector<std::byte> odd(static_cast<std::size_t>(comm.size()) + 1);
  const std::span<std::byte> buffers[] = {
      std::span(odd).first(static_cast<std::size_t>(comm.size())), odd};
  findings.expect_throw<std::invalid_argument>("uneven grouped all_gather",
                                               [&] { comm.all_gather(buffers); });
}

void all_reduce(Communicator& comm, Findings& findings) {
  reduce_type<std::uint8_t>(comm, findings);
  reduce_type<std::uint64_t>(comm, findings);
  reduce_type<float>(comm, findings);
  reduce_type<double>(comm, findings);
}

void broadcast(Communicator& comm, Findings& findings) {
  broadcast_type<std::uint8_t>(comm, findings);
  broadcast_type<std::uint64_t>(comm, findings);
  broadcast_type<float>(comm, findings);
  broadcast_type<double>(comm, findings);
}

void all_gather(Communicator& comm, Findings& findings) {
  gather_type<std::uint8_t>(comm, findings);
  gather_type<std::uint64_t>(comm, findings);
  gather_type<float>(comm, findings);
  gather_type<double>(comm, findings);
}

template <class T>
void all_to_all_type(Communicator& comm, Findings& findings) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  for (const std::size_t count : counts_of<T>()) {
    std::vector<T> send;
    std::vector<T> expected;
    for (int peer = 0; peer < comm.size(); ++peer) {
      const auto to = elements<T>((comm.rank() + 2 * peer) % 8, count);
      const auto from = elements<T>((peer + 2 * comm.rank()) % 8, count);
      send.insert(send.end(), to.begin(), to.end());
      expected.insert(expected.end(), from.begin(), from.end());
    }
    std::vector<T> receive(ranks * count);
    comm.all_to_all(std::span<const T>(send), std::span(receive));
    findings.expect(receive == expected, label("all_to_all", comm::TypeOf<T>::value, count));
  }
}

void all_to_all(Communicator& comm, Findings& findings) {
  all_to_all_type<std::uint8_t>(comm, findings);
  all_to_all_type<std::uint64_t>(comm, findings);
  all_to_all_type<float>(comm, findings);
  all_to_all_type<double>(comm, findings);
  std::vector<float> one(static_cast<std::size_t>(comm.size()));
  std::vector<float> two(2 * one.size());
  findings.expect_throw<std::invalid_argument>("all_to_all of different lengths", [&] {
    comm.all_to_all(std::span<const float>(one), std::span(two));
  });
}

template <class T>
void shift_type(Communicator& comm, Findings& findings) {
  const int before = (comm.rank() + comm.size() - 1) % comm.size();
  for (const std::size_t count : counts_of<T>()) {
    const auto send = elements<T>(comm.rank(), count);
    std::vector<T> receive(count);
    comm.shift(std::span<const T>(send), std::span(receive));
    findings.expect(receive == elements<T>(before, count),
                    label("shift", comm::TypeOf<T>::value, count));
  }
}

void shift(Communicator& comm, Findings& findings) {
  shift_type<std::uint8_t>(comm, findings);
  shift_type<std::uint64_t>(comm, findings);
  shift_type<float>(comm, findings);
  shift_type<double>(comm, findings);
}

/// What lies in the communicator's own memory is moved another way, to the same result.
void own_memory(Communicator& comm, Findings& findings) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  for (const std::size_t count : counts) {
    AlignedBuffer<float> sums(count, comm.memory());
    AlignedBuffer<float> blocks(ranks * count, comm.memory());
    AlignedBuffer<float> received(ranks * count, comm.memory());
    for (int round = 0; round < 2; ++round) {
      const auto mine = elements<float>(comm.rank(), count);
      std::copy(mine.begin(), mine.end(), sums.data());
      std::copy(mine.begin(), mine.end(),
                blocks.data() + static_cast<std::size_t>(comm.rank()) * count);
      comm.all_reduce(sums.span());
      comm.all_gather(blocks.span());
      comm.all_to_all(std::span<const float>(blocks.span()), received.span());
      const auto sum = elements<float>(comm.size() * (comm.size() + 1) / 2 - 1, count);
      findings.expect(std::equal(sum.begin(), sum.end(), sums.data()), "sums in own memory");
      for (int peer = 0; peer < comm.size(); ++peer) {
        const auto theirs = elements<float>(peer, count);
        const auto own = elements<float>(comm.rank(), count);
        const std::size_t at = static_cast<std::size_t>(peer) * count;
        findings.expect(std::equal(theirs.begin(), theirs.end(), blocks.data() + at),
                        "blocks in own memory");
        findings.expect(std::equal(own.begin(), own.end(), received.data() + at),
                        "all_to_all in own memory");
      }
      comm.shift(std::span<const float>(sums.span()), received.span().first(count));
      findings.expect(std::equal(sum.begin(), sum.end(), received.data()), "shift in own memory");
      comm.broadcast(sums.span(), comm.size() - 1);
      findings.expect(std::equal(sum.begin(), sum.end(), sums.data()), "broadcast in own memory");
      comm.all_agree(true);  // the next round writes what peers have read by now
    }
  }
}

/// Collectives of changing values and lengths, with ranks out of step: none may return data of an
/// earlier one.
void changing_values(Communicator& comm, Findings& findings) {
  constexpr std::size_t rounds = 200;
  const auto value = [](std::size_t round, int rank, std::size_t i) {
    return static_cast<float>((31 * round + 7 * static_cast<std::size_t>(rank) + i) % 1000);
  };
  const int before = (comm.rank() + comm.size() - 1) % comm.size();
  for (std::size_t round = 0; round < rounds; ++round) {
    const std::size_t count = 53 * round % 1200;
    std::vector<float> mine(count);
    std::vector<float> sums(count);
    std::vector<float> theirs(count);
    for (std::size_t i = 0; i < count; ++i) {
      mine[i] = value(round, comm.rank(), i);
      theirs[i] = value(round, before, i);
      for (int rank = 0; rank < comm.size(); ++rank) sums[i] += value(round, rank, i);
    }
    std::vector<float> shifted(count);
    comm.shift(std::span<const float>(mine), std::span(shifted));
    findings.expect(shifted == theirs, label("shift of new values", comm::Type::f32, count));
    if (round % 16 == static_cast<std::size_t>(comm.rank())) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    comm.all_reduce(std::span(mine));
    findings.expect(mine == sums, label("all_reduce of new values", comm::Type::f32, count));
  }
}

void uneven_blocks(Communicator& comm, Findings& findings) {
  if (comm.size() == 1) return;
  std::vector<float> values(static_cast<std::size_t>(comm.size()) + 1);
  findings.expect_throw<std::invalid_argument>("uneven all_gather",
                                               [&] { comm.all_gather(std::span(values)); });
}

void same_bits(Communicator& comm, Findings& findings) {
  for (const std::size_t count : counts) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = 0.1F * static_cast<float>(comm.rank() + 1) / static_cast<float>(i + 3);
    }
    comm.all_reduce(std::span(values));
    std::uint64_t digest = 0;
    for (const float v : values) digest = digest * 31 + std::bit_cast<std::uint32_t>(v);
    std::vector<std::uint64_t> digests(static_cast<std::size_t>(comm.size()));
    digests[static_cast<std::size_t>(comm.rank())] = digest;
    comm.all_gather(std::span(digests));
    findings.expect(std::all_of(digests.begin(), digests.end(),
                                [&](std::uint64_t d) { return d == digests[0]; }),
                    label("bits of all_reduce", comm::Type::f32, count));
  }
}

void all_agree(Communicator& comm, Findings& findings) {
  findings.expect(comm.all_agree(true), "all agree");
  findings.expect(!comm.all_agree(false), "none agrees");
  for (int odd = 0; odd < comm.size(); ++odd) {
    findings.expect(!comm.all_agree(comm.rank() != odd), "all but one agree");
  }
}

void place(Communicator& comm, Findings& findings) {
  const comm::Place& place = comm.place();
  findings.expect(!place.host.empty(), "host has a name");
  findings.expect(place.node >= 0 && place.node < place.nodes, "node is among the nodes");
  findings.expect(place.local_rank >= 0 && place.local_rank < place.local_ranks,
                  "local rank is among the local ranks");
  std::vector<std::uint64_t> on_node(static_cast<std::size_t>(place.nodes));
  on_node[static_cast<std::size_t>(place.node)] = 1;
  comm.all_reduce(std::span(on_node));
  findings.expect(on_node[static_cast<std::size_t>(place.node)] ==
                      static_cast<std::uint64_t>(place.local_ranks),
                  "as many ranks on the node as it says");
}

void texts(Communicator& comm, Findings& findings) {
  const auto text_of = [](int rank) {
    return std::string(static_cast<std::size_t>(rank) * 100, 'x') + std::string(1, '\0') +
           std::to_string(rank);
  };
  const auto all = comm::gather_text(comm, text_of(comm.rank()));
  findings.expect(all.size() == static_cast<std::size_t>(comm.size()), "one text a rank");
  for (int rank = 0; rank < comm.size(); ++rank) {
    findings.expect(all[static_cast<std::size_t>(rank)] == text_of(rank), "gather_text");
    findings.expect(comm::broadcast_text(comm, text_of(comm.rank()), rank) == text_of(rank),
                    "broadcast_text");
  }
  const auto empty = comm::gather_text(comm, "");
  findings.expect(empty == std::vector<std::string>(all.size()), "empty texts");
}

void together_succeeds(Communicator& comm, Findings& findings) {
  bool ran = false;
  comm::together(comm, [&] { ran = true; });
  findings.expect(ran, "local work runs");
}

// Any rank's failure is everybody's, with its code and text.
void together_fails(Communicator& comm, Findings& findings) {
  for (int bad = 0; bad < comm.size(); ++bad) {
    try {
      comm::together(comm, [&] {
        if (comm.rank() == bad) throw DataError("train.idx: no such file");
      });
      findings.expect(false, "together does not throw");
    } catch (const AgreedError& error) {
      const std::string what = error.what();
      const std::string who = "rank " + std::to_string(bad) + " on ";
      findings.expect(error.code() == ExitCode::data, "code of together");
      findings.expect(what.ends_with("train.idx: no such file"), what);
      findings.expect(what.starts_with(comm.size() == 1 ? "train" : who), what);
    }
  }
}

void together_fails_on_all(Communicator& comm, Findings& findings) {
  const auto same = findings.expect_throw<AgreedError>("same failure on all", [&] {
    comm::together(comm, [] { throw ConfigError("no key `x`", "use y"); });
  });
  findings.expect(same == "no key `x`\n  remedy: use y", same);
  const auto memory = findings.expect_throw<AgreedError>(
      "bad_alloc", [&] { comm::together(comm, [] { throw std::bad_alloc(); }); });
  findings.expect(memory == "out of memory", memory);
  if (comm.size() == 1) return;
  const auto all = findings.expect_throw<AgreedError>("all, differently", [&] {
    comm::together(comm,
                   [&] { throw std::runtime_error("reason " + std::to_string(comm.rank())); });
  });
  const auto end = " (the first of " + std::to_string(comm.size()) + " that failed, of " +
                   std::to_string(comm.size()) + " ranks): reason 0";
  findings.expect(all.starts_with("rank 0 on ") && all.ends_with(end), all);
  if (comm.size() < 3) return;
  const auto some = findings.expect_throw<AgreedError>("several, differently", [&] {
    comm::together(comm, [&] {
      if (comm.rank() > 0) throw std::runtime_error("reason " + std::to_string(comm.rank()));
    });
  });
  const auto tail = " (the first of " + std::to_string(comm.size() - 1) + " that failed, of " +
                    std::to_string(comm.size()) + " ranks): reason 1";
  findings.expect(some.starts_with("rank 1 on ") && some.ends_with(tail), some);
}

void shared_work_fails_on_one(Communicator& comm, Findings& findings) {
  if (comm.size() == 1) return;
  for (int failing = 0; failing < comm.size(); ++failing) {
    bool gathered = false;
    const auto what = findings.expect_throw<AgreedError>("one, before it gathers", [&] {
      comm::together(comm, [&](comm::Exchange& exchange) {
        if (comm.rank() == failing) throw std::runtime_error("cannot read");
        gathered = exchange.gather("text").has_value();
      });
    });
    findings.expect(!gathered, "texts of a rank that has failed");
    findings.expect(what.starts_with("rank " + std::to_string(failing) + " on ") &&
                        what.ends_with(": cannot read"),
                    what);
  }
}

void equal_settings(Communicator& comm, Findings&) {
  comm::require_equal(comm, "the configuration", {});
  comm::KeyValues settings = {{"seed", "22"}, {"layers", "700,500"}};
  if (comm.rank() % 2 == 1) std::reverse(settings.begin(), settings.end());
  comm::require_equal(comm, "the configuration", settings);
}

void one_odd_rank(Communicator& comm, Findings& findings) {
  if (comm.size() < 3) return;
  for (int odd = 0; odd < comm.size(); ++odd) {
    const bool mine = comm.rank() == odd;
    try {
      comm::require_equal(comm, "the configuration",
                          {{"layers", "700"}, {"seed", mine ? "23" : "22"}});
      findings.expect(false, "require_equal does not throw");
    } catch (const AgreedError& error) {
      const std::string what = error.what();
      const auto odd_part = "seed is 23 on rank " + std::to_string(odd) + " on ";
      const auto rest = "22 on the other " + std::to_string(comm.size() - 1) + " ranks";
      findings.expect(error.code() == ExitCode::usage, "code of require_equal");
      findings.expect(what.find(odd_part) != std::string::npos, what);
      findings.expect(what.find(rest) != std::string::npos, what);
      findings.expect(what.find("layers") == std::string::npos, what);
    }
  }
}

void halves_differ(Communicator& comm, Findings& findings) {
  if (comm.size() % 2 != 0) return;
  const bool low = comm.rank() < comm.size() / 2;
  const auto what = findings.expect_throw<AgreedError>("halves", [&] {
    comm::KeyValues settings = {{"batch-size", low ? "128" : "64"}};
    if (low) settings.emplace_back("leaf", "16");
    comm::require_equal(comm, "the configuration", settings);
  });
  const std::string tail =
      comm.size() == 2 ? " on rank 1 on " : " on ranks " + std::to_string(comm.size() / 2) + "-";
  findings.expect(what.find("batch-size is 128 on rank") != std::string::npos, what);
  findings.expect(what.find(", 64" + tail) != std::string::npos, what);
  findings.expect(what.find("leaf is 16 on rank") != std::string::npos, what);
  findings.expect(what.find(", (not set)" + tail) != std::string::npos, what);
}

/// The parts of a group keep the contract too, also at the same time, and the whole beside them.
void split(Communicator& comm, Findings& findings) {
  const int last = comm.size() - 1;
  for (const int color : {comm.rank() % 2, comm.rank() / 2 - 7, comm.rank() == last ? 1 : 0, 3}) {
    const auto part = comm.split(color);
    std::vector<std::uint64_t> here(static_cast<std::size_t>(part->size()));
    here[static_cast<std::size_t>(part->rank())] = static_cast<std::uint64_t>(comm.rank());
    part->all_gather(std::span(here));
    findings.expect(std::is_sorted(here.begin(), here.end()), "a part's ranks in order");
    if (color == 3) findings.expect(part->size() == comm.size(), "one color: all ranks");
    for (const auto check : {all_reduce, broadcast, all_to_all, shift, own_memory, place}) {
      check(*part, findings);
    }
    all_reduce(comm, findings);
    const auto halves = part->split(part->rank() % 2);
    all_gather(*halves, findings);
    for (const auto* group : {part.get(), halves.get()}) {
      const int named = group->world_rank(group->rank());
      findings.expect(named == comm.world_rank(comm.rank()),
                      "a part names ranks as the whole does");
      findings.expect(group->own_cores() == comm.own_cores(),
                      "a rank has the same cores in a part");
    }
  }
}

}  // namespace

const std::vector<ContractCheck>& communicator_contract() {
  static const std::vector<ContractCheck> checks = {
      {"all_reduce", all_reduce},
      {"broadcast", broadcast},
      {"all_gather", all_gather},
      {"all_gather refuses uneven blocks", uneven_blocks},
      {"grouped all_gather", grouped_all_gather},
      {"all_to_all", all_to_all},
      {"shift", shift},
      {"own memory", own_memory},
      {"changing values", changing_values},
      {"split", split},
      {"all ranks get the same bits", same_bits},
      {"all_agree", all_agree},
      {"place", place},
      {"gather_text and broadcast_text", texts},
      {"together succeeds", together_succeeds},
      {"together fails on one rank", together_fails},
      {"together fails on several", together_fails_on_all},
      {"shared work fails on one rank", shared_work_fails_on_one},
      {"require_equal accepts equal settings", equal_settings},
      {"require_equal names the odd rank", one_odd_rank},
      {"require_equal names both halves", halves_differ},
  };
  return checks;
}

}  // namespace lockstep::test
