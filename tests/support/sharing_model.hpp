// Who gets which elements at which step, told slowly and plainly: the rules of the guide with lists
// and loops. Tests compare plans and iterated data sets with it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "lockstep/data/plan.hpp"
#include "tests/support/dealt.hpp"

namespace lockstep::support {

/// What is shared out, and how. Elements are numbered through all files.
struct Sharing {
  std::vector<std::uint64_t> files;  ///< elements of each file; one without sharding by files
  std::uint64_t batch = 1;
  std::uint64_t ranks = 1;
  std::uint64_t leaf = 1;  ///< DATA
  bool drop_remainder = false;
  data::ShardPolicy policy = data::ShardPolicy::data;  ///< not automatic
  data::Rebatch rebatch = data::Rebatch::ceil;
};

/// The elements that a worker reads, in order: under FILE those of files worker, worker + ranks,
/// ...
inline Ids told_stream(const Sharing& sharing, std::uint64_t worker) {
  Ids stream;
  std::uint64_t next = 0;
  for (std::uint64_t file = 0; file < sharing.files.size(); ++file) {
    const bool mine = sharing.policy != data::ShardPolicy::file || file % sharing.ranks == worker;
    for (std::uint64_t i = 0; i < sharing.files[file]; ++i) {
      if (mine) stream.push_back(next);
      ++next;
    }
  }
  return stream;
}

/// Consecutive batches; the last may be smaller, or is dropped.
inline std::vector<Ids> told_batches(const Ids& stream, const Sharing& sharing) {
  std::vector<Ids> batches;
  for (const std::uint64_t element : stream) {
    if (batches.empty() || batches.back().size() == sharing.batch) batches.emplace_back();
    batches.back().push_back(element);
  }
  if (!batches.empty() && batches.back().size() < sharing.batch && sharing.drop_remainder) {
    batches.pop_back();
  }
  return batches;
}

/// One batch in `sharing.ranks` pieces, in order, of ceil(leaves / ranks) whole leaves each, as
/// long as there are elements.
inline std::vector<Ids> told_cut(const Ids& batch, std::uint64_t leaf, std::uint64_t ranks) {
  const std::uint64_t leaves = (batch.size() + leaf - 1) / leaf;
  const std::uint64_t size = (leaves + ranks - 1) / ranks * leaf;
  std::vector<Ids> pieces(ranks);
  for (std::uint64_t i = 0; i < batch.size(); ++i) pieces[i / size].push_back(batch[i]);
  return pieces;
}

/// The pieces of a worker's own stream, one a step. Rule `balanced`: batch / ranks elements, and
/// one more in batch % ranks of each `ranks` steps; worker w is w steps ahead in this cycle.
inline std::vector<Ids> told_pieces(const Ids& stream, const Sharing& sharing,
                                    std::uint64_t worker) {
  std::vector<Ids> pieces;
  for (const Ids& batch : told_batches(stream, sharing)) {
    if (sharing.rebatch == data::Rebatch::ceil) {
      for (const Ids& piece : told_cut(batch, 1, sharing.ranks)) pieces.push_back(piece);
      continue;
    }
    for (const std::uint64_t element : batch) {
      const std::uint64_t turn = pieces.size() + sharing.ranks - 1 + worker;  // of the last piece
      const bool larger = turn % sharing.ranks < sharing.batch % sharing.ranks;
      const std::uint64_t size = sharing.batch / sharing.ranks + (larger ? 1 : 0);
      if (pieces.empty() || pieces.back().size() == size) pieces.emplace_back();
      pieces.back().push_back(element);
    }
  }
  return pieces;
}

/// Step -> rank -> elements. Under FILE and OFF `streams` has the elements that each rank reads;
/// under DATA the first is read by all. Steps without an element are left out.
inline Dealt told(const Sharing& sharing, const std::vector<Ids>& streams) {
  Dealt steps;
  if (sharing.policy == data::ShardPolicy::data) {
    for (const Ids& batch : told_batches(streams[0], sharing)) {
      steps.push_back(told_cut(batch, sharing.leaf, sharing.ranks));
    }
    return steps;
  }
  for (std::uint64_t rank = 0; rank < sharing.ranks; ++rank) {
    const auto pieces = told_pieces(streams[rank], sharing, rank);
    for (std::size_t step = 0; step < pieces.size(); ++step) {
      if (step == steps.size()) steps.emplace_back(sharing.ranks);
      steps[step][rank] = pieces[step];
    }
  }
  std::erase_if(steps, [](const std::vector<Ids>& step) {
    return std::all_of(step.begin(), step.end(), [](const Ids& piece) { return piece.empty(); });
  });
  return steps;
}

/// The same for streams in the order of the files.
inline Dealt told(const Sharing& sharing) {
  std::vector<Ids> streams;
  for (std::uint64_t rank = 0; rank < sharing.ranks; ++rank) {
    streams.push_back(told_stream(sharing, rank));
  }
  return told(sharing, streams);
}

}  // namespace lockstep::support
