#include "echelon/base/error.h"

#include <cerrno>

#include <gtest/gtest.h>

#include "tests/base/thrown.h"

namespace echelon {
namespace {

TEST(Error, AppendsTheSystemsReason) {
  errno = ENOSPC;
  EXPECT_EQ(with_errno("cannot write a.toml"), "cannot write a.toml: No space left on device");
  errno = ENOENT;
  EXPECT_EQ(with_errno("cannot read b"), "cannot read b: No such file or directory");
}

TEST(Error, EveryKindIsCaughtAsError) {
  EXPECT_EQ(thrown<Error>([] { throw InvalidArgument("a"); }), "a");
  EXPECT_EQ(thrown<Error>([] { throw Corrupt("b"); }), "b");
  EXPECT_EQ(thrown<Error>([] { throw Timeout("c"); }), "c");
  EXPECT_EQ(thrown<Error>([] { throw PeerLost("d"); }), "d");
  EXPECT_EQ(thrown<Error>([] { throw Refused("e"); }), "e");
}

}  // namespace
}  // namespace echelon
