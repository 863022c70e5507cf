#pragma once

namespace echelon {

class Communicator;
class Dataset;

// Throws InvalidArgument naming a rank if ranks were given datasets of different sizes, or with
// different samples at the beginning, in the middle or at the end. Every rank must pass the whole
// dataset: the trainer splits the batches. A dataset whose samples are drawn anew each time is
// compared by size only. Nothing is rejected if any rank sets `allowed`. Collective, whatever
// `allowed` says.
void require_same_dataset(const Dataset& data, Communicator& ranks, bool allowed);

}  // namespace echelon
