#include "lockstep/collectives/agreement.hpp"

#include <algorithm>
#include <exception>
#include <limits>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <span>

#include "lockstep/base/hash.hpp"
#include "lockstep/base/packing.hpp"
#include "lockstep/base/text.hpp"

namespace lockstep::comm {
namespace {

std::span<std::uint8_t> bytes_of(std::string& text) {
  return {reinterpret_cast<std::uint8_t*>(text.data()), text.size()};
}

struct Failure {
  ExitCode code;
  std::string text;
  std::string host;
};

std::optional<Failure> attempt(Communicator& comm, const std::function<void()>& work) {
  const std::string& host = comm.place().host;
  try {
    work();
    return std::nullopt;
  } catch (const Error& error) {
    return Failure{error.code(), error.what(), host};
  } catch (const std::bad_alloc&) {
    return Failure{ExitCode::internal, "out of memory", host};
  } catch (const std::exception& error) {
    return Failure{ExitCode::internal, error.what(), host};
  } catch (...) {
    return Failure{ExitCode::internal, "an exception of unknown type", host};
  }
}

// Collective. The failures by rank; contains only ranks that failed.
std::map<int, Failure> gather_failures(Communicator& comm, const std::optional<Failure>& mine) {
  Packer packer;
  if (mine) {
    packer.add(static_cast<std::uint64_t>(mine->code));
    packer.add(mine->text);
    packer.add(mine->host);
  }
  std::map<int, Failure> failures;
  int rank = 0;
  for (const std::string& theirs : gather_text(comm, packer.take())) {
    if (Unpacker parts(theirs); !parts.at_end()) {
      Failure& failure = failures[rank];
      failure.code = static_cast<ExitCode>(parts.number());
      failure.text = parts.text();
      failure.host = parts.text();
    }
    ++rank;
  }
  return failures;
}

using Groups = std::map<std::string, std::vector<int>>;  // value -> ranks with this value

std::string name_ranks(const Communicator& comm, const std::vector<int>& ranks,
                       const std::vector<std::string>& hosts) {
  std::vector<int> of_world = ranks;
  for (int& rank : of_world) rank = comm.world_rank(rank);
  return ranks_text(of_world) +
         (ranks.size() == 1 ? " on " + hosts[static_cast<std::size_t>(ranks[0])] : "");
}

// "batch-size is 64 on rank 3 on h2, 128 on the other 3 ranks": deviating ranks first.
std::string describe_difference(const Communicator& comm, const std::string& key,
                                const Groups& groups, const std::vector<std::string>& hosts) {
  std::vector<Groups::const_pointer> order;
  for (const auto& group : groups) order.push_back(&group);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.size(), a->second) < std::pair(b->second.size(), b->second);
  });
  const std::size_t largest = order.back()->second.size();
  const bool majority = order[order.size() - 2]->second.size() < largest;
  std::string text;
  for (const auto* group : order) {
    const bool rest = majority && group == order.back() && largest > 1;
    text += (text.empty() ? key + " is " : ", ") + group->first + " on " +
            (rest ? "the other " + std::to_string(largest) + " ranks"
                  : name_ranks(comm, group->second, hosts));
  }
  return text;
}

struct Settings {
  std::vector<std::map<std::string, std::string>> of_rank;
  std::vector<std::string> hosts;
  std::set<std::string> keys;
};

Settings gather_settings(Communicator& comm, const std::string& packed) {
  Settings all;
  Packer packer;
  packer.add(comm.place().host);
  for (const std::string& theirs : gather_text(comm, packer.take() + packed)) {
    Unpacker parts(theirs);
    all.hosts.emplace_back(parts.text());
    auto& settings = all.of_rank.emplace_back();
    while (!parts.at_end()) {
      const std::string key(parts.text());
      settings[key] = parts.text();
      all.keys.insert(key);
    }
  }
  return all;
}

Groups group_by_value(const Settings& all, const std::string& key) {
  Groups groups;
  int rank = 0;
  for (const auto& settings : all.of_rank) {
    const auto found = settings.find(key);
    const std::string value = found == settings.end() ? "(not set)"
                              : found->second.empty() ? "(empty)"
                                                      : found->second;
    groups[value].push_back(rank++);
  }
  return groups;
}

/// The end of together(): collective.
void agree(Communicator& comm, const std::optional<Failure>& mine) {
  if (comm.all_agree(!mine)) return;
  const auto failures = gather_failures(comm, mine);
  const auto& [rank, first] = *failures.begin();
  const auto failed = failures.size();
  const bool by_all = failed == static_cast<std::size_t>(comm.size()) &&
                      std::all_of(failures.begin(), failures.end(), [&](const auto& other) {
                        return other.second.text == first.text;
                      });
  if (by_all) throw AgreedError(first.code, first.text);
  std::string who = "rank " + std::to_string(comm.world_rank(rank)) + " on " + first.host;
  if (failed > 1) {
    who += " (the first of " + std::to_string(failed) + " that failed, of " +
           std::to_string(comm.size()) + " ranks)";
  }
  throw AgreedError(first.code, who + ": " + first.text);
}

/// The texts of all ranks, of which `sizes` are known, in `buffer`. Collective.
std::vector<std::string_view> gather_sized(Communicator& comm, std::string_view mine,
                                           std::span<const std::uint64_t> sizes,
                                           std::vector<std::uint8_t>& buffer) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::size_t longest = *std::max_element(sizes.begin(), sizes.end());
  if (buffer.size() < ranks * longest) buffer.resize(ranks * longest);
  const auto all = std::span(buffer).first(ranks * longest);
  const auto text = [&](std::size_t rank) { return all.subspan(rank * longest, sizes[rank]); };
  std::copy(mine.begin(), mine.end(), text(static_cast<std::size_t>(comm.rank())).begin());
  comm.all_gather(all);
  std::vector<std::string_view> texts;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    texts.emplace_back(reinterpret_cast<const char*>(text(rank).data()), text(rank).size());
  }
  return texts;
}

constexpr std::uint64_t ended = std::numeric_limits<std::uint64_t>::max();  // instead of a size

}  // namespace

std::optional<std::vector<std::string_view>> Exchange::gather(std::string_view mine) {
  if (broken_) std::rethrow_exception(broken_);
  if (has_ended_) return std::nullopt;
  try {
    const auto sizes = gather_number(comm_, mine.size());
    has_ended_ = contains(sizes, ended);
    if (!has_ended_) grow(*std::max_element(sizes.begin(), sizes.end()));
    if (has_ended_) return std::nullopt;
    return gather_sized(comm_, mine, sizes, texts_);
  } catch (const CommError&) {
    broken_ = std::current_exception();
    throw;
  }
}

/// Makes texts_, whose length is the same on all ranks, hold a text of `longest` bytes from each of
/// them. If one has no memory for that, the exchange ends on all. Throws std::bad_alloc.
/// Collective.
void Exchange::grow(std::size_t longest) {
  const std::size_t bytes = static_cast<std::size_t>(comm_.size()) * longest;
  if (bytes <= texts_.size()) return;
  bool has_grown = true;
  try {
    texts_.resize(bytes);
  } catch (const std::exception&) {
    has_grown = false;
  }
  has_ended_ = !comm_.all_agree(has_grown);
  if (!has_grown) throw std::bad_alloc();
}

void Exchange::end() {
  if (broken_) std::rethrow_exception(broken_);
  if (!has_ended_) gather_number(comm_, ended);
  has_ended_ = true;
}

void together(Communicator& comm, const std::function<void()>& local_work) {
  agree(comm, attempt(comm, local_work));
}

void together(Communicator& comm, const std::function<void(Exchange&)>& shared_work) {
  Exchange exchange(comm);
  const auto mine = attempt(comm, [&] { shared_work(exchange); });
  exchange.end();
  agree(comm, mine);
}

std::vector<std::uint64_t> gather_number(Communicator& comm, std::uint64_t mine) {
  std::vector<std::uint64_t> numbers(static_cast<std::size_t>(comm.size()));
  numbers[static_cast<std::size_t>(comm.rank())] = mine;
  comm.all_gather(std::span(numbers));
  return numbers;
}

std::vector<std::string> gather_text(Communicator& comm, const std::string& mine) {
  std::vector<std::uint8_t> buffer;
  const auto texts = gather_sized(comm, mine, gather_number(comm, mine.size()), buffer);
  return {texts.begin(), texts.end()};
}

std::string broadcast_text(Communicator& comm, std::string text, int root) {
  std::uint64_t size = text.size();
  comm.broadcast(std::span(&size, 1), root);
  text.resize(size);
  comm.broadcast(bytes_of(text), root);
  return text;
}

void require_equal(Communicator& comm, const std::string& what, const KeyValues& mine,
                   const std::string& remedy, ExitCode code) {
  Packer packer;
  const std::map<std::string, std::string> sorted(mine.begin(), mine.end());
  for (const auto& [key, value] : sorted) {
    packer.add(key);
    packer.add(value);
  }
  const std::string packed = packer.take();
  Hash hash;
  hash.add(packed);
  const auto hashes = gather_number(comm, hash.value());
  if (std::all_of(hashes.begin(), hashes.end(), [&](auto h) { return h == hashes[0]; })) return;

  const Settings all = gather_settings(comm, packed);
  std::string text = what + " differs between ranks:";
  for (const std::string& key : all.keys) {
    const Groups groups = group_by_value(all, key);
    if (groups.size() > 1) text += "\n  " + describe_difference(comm, key, groups, all.hosts);
  }
  throw AgreedError(code, text, remedy);
}

}  // namespace lockstep::comm
