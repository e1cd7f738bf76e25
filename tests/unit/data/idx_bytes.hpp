// Small IDX files, byte by byte, and what tests of sources have in common.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/data/source.hpp"
#include "lockstep/data/writer.hpp"

namespace lockstep::test {

using Bytes = std::vector<std::uint8_t>;

/// An IDX header of big-endian numbers, then `payload`.
inline Bytes idx(const std::vector<std::uint32_t>& header, const Bytes& payload) {
  Bytes bytes;
  for (const std::uint32_t number : header) {
    for (const int shift : {24, 16, 8, 0}) {
      bytes.push_back(static_cast<std::uint8_t>(number >> shift));
    }
  }
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

/// `records` images of 3x4 pixels; pixel p of record r is (base + 37 r + 11 p) mod 256.
inline Bytes images(std::uint32_t records, std::uint32_t base = 0, std::uint32_t rows = 3,
                    std::uint32_t columns = 4) {
  Bytes pixels;
  for (std::uint32_t r = 0; r < records; ++r) {
    for (std::uint32_t p = 0; p < rows * columns; ++p) {
      pixels.push_back(static_cast<std::uint8_t>(base + 37 * r + 11 * p));
    }
  }
  return idx({0x803, records, rows, columns}, pixels);
}

/// Labels 0, 1, ... 9, 0, ...
inline Bytes labels(std::uint32_t records, std::uint32_t base = 0) {
  Bytes values;
  for (std::uint32_t r = 0; r < records; ++r) {
    values.push_back(static_cast<std::uint8_t>((base + r) % 10));
  }
  return idx({0x801, records}, values);
}

/// One gzip member.
inline Bytes gzip(const Bytes& bytes) {
  z_stream stream{};
  if (deflateInit2(&stream, 9, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::runtime_error("deflateInit2");
  }
  Bytes out(deflateBound(&stream, bytes.size()) + 64);
  Bytes in = bytes;
  stream.next_in = in.data();
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  if (deflate(&stream, Z_FINISH) != Z_STREAM_END) throw std::runtime_error("deflate");
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

/// What reading gives.
struct Records {
  std::vector<float> x;
  std::vector<std::int32_t> labels;

  bool operator==(const Records&) const = default;
};

inline Records read(data::Source& source, const std::vector<std::uint64_t>& ids) {
  Records records{std::vector<float>(ids.size() * source.features()),
                  std::vector<std::int32_t>(ids.size())};
  source.read(ids, records.x, records.labels);
  return records;
}

inline Records read_all(data::Source& source) {
  std::vector<std::uint64_t> ids(source.records());
  std::iota(ids.begin(), ids.end(), 0U);
  return read(source, ids);
}

/// Writes the records into the files of `target`.
inline void write_records(const data::Target& target, const data::RecordShape& shape,
                          const data::RecordAt& record) {
  data::finish_records(target, shape, record).publish();
}

/// The message of the E that `call` throws; fails loudly where it throws none.
template <class E, class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace lockstep::test
