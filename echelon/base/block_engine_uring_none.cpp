#include "echelon/base/block_engine.h"

namespace echelon {

bool uring_built() { return false; }
std::unique_ptr<BlockEngine> uring_engine() { return nullptr; }

}  // namespace echelon
