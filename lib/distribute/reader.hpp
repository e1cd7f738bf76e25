// One pass over a data set: what every transformation implements.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>

#include "data/rebatch.hpp"

namespace lockstep {

/// The size of what never ends.
inline constexpr std::uint64_t endless = std::numeric_limits<std::uint64_t>::max();

/// Which pass over a data set, and by whom.
struct Pass {
  std::uint64_t epoch = 0;
  /// Files are dealt round-robin to `workers`: this pass reads those of `worker`. Data that does
  /// not come from files is read whole.
  std::uint64_t worker = 0;
  std::uint64_t workers = 1;
};

/// An element, and what random transformations of it are a function of.
template <class T>
struct Item {
  T value;
  std::uint64_t id = 0;     ///< the same in every pass, whoever reads it
  std::uint64_t epoch = 0;  ///< of the pass; each repetition counts as one
};

/// Yields the elements of one pass. Local; one thread.
///
/// Where size() is known, any element can be reached at once. Where examples() is, the elements are
/// batches that can be cut before they are read: rows() reads just those examples.
template <class T>
class Reader {
 public:
  Reader() = default;
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  virtual ~Reader() = default;

  /// The next element; none at the end, and ever after.
  virtual std::optional<Item<T>> next() = 0;

  /// Elements of the pass, perhaps endless; none where elements follow each other only.
  virtual std::optional<std::uint64_t> size() const { return std::nullopt; }

  /// Element `index`, below size(). Leaves next() where it stands.
  virtual Item<T> at(std::uint64_t) { throw std::logic_error("Reader::at: no random access"); }

  /// Examples of the pass, all batches together.
  virtual std::optional<std::uint64_t> examples() const { return std::nullopt; }

  /// The examples at these positions of the pass as one batch.
  virtual T rows(data::Range) { throw std::logic_error("Reader::rows: no random access"); }
};

template <class T>
using ReaderPtr = std::unique_ptr<Reader<T>>;

/// What can be reached at once, read in order.
template <class T>
class IndexedReader : public Reader<T> {
 public:
  std::optional<Item<T>> next() override {
    if (position_ >= this->size().value()) return std::nullopt;
    return this->at(position_++);
  }

 private:
  std::uint64_t position_ = 0;
};

}  // namespace lockstep
