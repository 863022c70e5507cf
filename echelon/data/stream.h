// Samples that come one after another and cannot be asked for by number: a decoder, a simulation, a
// connection.
//
//   class Frames : public echelon::StreamDataset {
//     echelon::Batch next() override { return decode_one_more(file_); }
//   };
//
// Step s uses samples [s * batch, (s + 1) * batch), in this order. Every rank has a stream of its
// own with the same samples, and reads what it does not use as well; skip() may do that faster. A
// resumed run skips to where it was.
//
// A trainer reads train.ahead batches ahead. Trainer::lay_out() drops what was read ahead, and a
// stream does not give it again: set train.ahead=0 if a trainer may be laid out anew, or make a new
// trainer on a stream that is opened anew.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>

#include "echelon/data/dataset.h"

namespace echelon {

class StreamDataset : public Dataset {
 public:
  // The next sample, as a batch of one. It must return or throw within a time that you set, also if
  // its source is quiet: a trainer's calls and its destructor wait for a next() that is running, so
  // a run that fails or is stopped cannot end before.
  virtual Batch next() = 0;
  // Passes over this many samples.
  virtual void skip(std::int64_t samples) {
    for (std::int64_t i = 0; i < samples; ++i) next();
  }

  std::int64_t size() const override { return std::numeric_limits<std::int64_t>::max(); }
  bool in_sequence() const override { return true; }

  // Keeps the first sample, which a trainer looks at before it begins, and those of the last call.
  // Throws InvalidArgument if a sample was passed over.
  Batch get(std::span<const std::int64_t> indices) const override;

 private:
  void drop_before(std::int64_t index) const;
  void read_to(std::int64_t index) const;
  Batch read_one() const;  // throws InvalidArgument unless next() gives one sample

  mutable Batch first_;
  mutable std::deque<Batch> kept_;  // samples [begin_, begin_ + kept_.size())
  mutable std::int64_t begin_ = 0;
  mutable std::int64_t asked_ = -1;  // the highest index of the call before
};

}  // namespace echelon
