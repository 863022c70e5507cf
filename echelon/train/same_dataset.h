#pragma once

namespace echelon {

class Communicator;
class Dataset;

// Throws InvalidArgument, naming a rank, where ranks were given datasets of different sizes, or
// with other samples at the beginning, in the middle or at the end: every rank gives the whole
// dataset, and the trainer splits batches. A dataset whose samples are drawn anew each time is
// compared by its size alone. Where any rank says `allowed` nothing is refused. Collective,
// whatever they say.
void require_same_dataset(const Dataset& data, Communicator& ranks, bool allowed);

}  // namespace echelon
