#include "echelon/collective/server_exchange.h"

#include <gtest/gtest.h>

#include "tests/collective/ranks.h"

namespace echelon {
namespace {

// Element i of worker w: small whole numbers, so that sums are exact.
float value(int w, std::size_t i) { return float((i * 7 + std::size_t(w) * 13) % 101); }

TEST(ServerExchange, SumsOnAllWorkersAndSendsWhatTheLawSays) {
  for (int workers = 2; workers <= 4; ++workers)
    for (int extra = 0; extra <= 2; ++extra)
      // None, fewer than ranks, some odd number, and more than a chunk for every owner.
      for (const std::size_t size :
           {std::size_t{0}, std::size_t{3}, std::size_t{1001}, 6 * ServerExchange::chunk + 17}) {
        const int world = workers + extra;
        SCOPED_TRACE(testing::Message()
                     << workers << " workers, " << extra << " servers, " << size << " elements");
        // Uneven parts: rank r owns in proportion to r + 1.
        std::vector<std::size_t> bounds = {0};
        for (int r = 0; r < world; ++r)
          bounds.push_back(size * std::size_t((r + 1) * (r + 2)) /
                           std::size_t(world * (world + 1)));
        run_ranks_well({.world = world, .shared_memory = false}, [&](Group& group) {
          ServerExchange exchange(group.shared_from_this(), workers, bounds);
          group.ledger().clear();
          const int me = group.rank();
          const bool works = me < workers;
          for (int round = 0; round < 2; ++round) {
            std::vector<float> data(works ? size : 0);
            for (std::size_t i = 0; i < data.size(); ++i) data[i] = value(me, i);
            exchange.run(works ? data.data() : nullptr);
            for (std::size_t i = 0; i < data.size(); ++i) {
              float sum = 0;
              for (int w = 0; w < workers; ++w) sum += value(w, i);
              ASSERT_EQ(data[i], sum) << "element " << i << " on rank " << me;
            }
          }
          // A worker pushes what others own; an owner gives its part back to all workers but
          // itself.
          const std::size_t mine = bounds[std::size_t(me) + 1] - bounds[std::size_t(me)];
          const std::size_t pushed = works ? size - mine : 0,
                            given = mine * std::size_t(works ? workers - 1 : workers);
          EXPECT_EQ(group.ledger().bytes(), 2 * (pushed + given) * sizeof(float));
        });
      }
}

}  // namespace
}  // namespace echelon
