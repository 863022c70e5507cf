// A short description of training data for comparisons: between ranks, between a run and its
// continuation, between a job and a worker that joins it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace echelon {

struct DataFingerprint {
  std::string source;     // as it was given; not compared
  std::string tokeniser;  // "bytes", or "random" for random tokens
  std::int64_t files = 0;
  std::int64_t training = 0, validation = 0;  // bytes of each part
  std::string sample;                         // a checksum of a few pages
  std::string digest;                         // a checksum of everything; empty: not known (yet)
};

// As JSON, and back. An empty or unreadable text gives an empty fingerprint, with no tokeniser.
std::string to_json(const DataFingerprint& data);
DataFingerprint fingerprint_of(const std::string& json);

// How two differ: "rank 1 has 900 bytes to train on and rank 0 has 1000". Empty if they do not, or
// if one of them is empty. Digests are compared if both are known.
std::string difference(const DataFingerprint& a, std::string_view name_of_a,
                       const DataFingerprint& b, std::string_view name_of_b);

// One text for several checksums.
std::string hexadecimal(std::initializer_list<std::uint64_t> numbers);

}  // namespace echelon
