// What changes a text before it is split. A tokeniser has a list of steps.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "echelon/data/tokenizer/aligned_text.h"
#include "echelon/data/tokenizer/pattern.h"

namespace echelon::tok {

class NormalizerStep {
 public:
  virtual ~NormalizerStep() = default;
  // `spare` is memory to work with.
  virtual void apply(AlignedText& text, AlignedText& spare) const = 0;
  virtual bool needs_normal_forms() const { return false; }
  // Whether all it does is to put something before a text.
  virtual bool prepends() const { return false; }
};
using Normalizer = std::vector<std::unique_ptr<NormalizerStep>>;

// Applies all steps; to a text that continues another one, without those that prepend. Throws
// InvalidArgument if the text grows beyond all reason, as replacements in a hostile file let it.
void normalize(const Normalizer& steps, AlignedText& text, AlignedText& spare,
               bool continues = false);

struct BertNormalizerSettings {
  bool clean = true;          // remove control characters; white space becomes spaces
  bool split_chinese = true;  // spaces around Chinese characters
  bool strip_accents = true;
  bool lower_case = true;
};
std::unique_ptr<NormalizerStep> bert_normalizer(const BertNormalizerSettings& settings);
std::unique_ptr<NormalizerStep> lower_case_normalizer();
std::unique_ptr<NormalizerStep> normal_form(bool compatible,
                                            bool composed);  // NFC, NFD, NFKC, NFKD
std::unique_ptr<NormalizerStep> strip_accents_normalizer();
std::unique_ptr<NormalizerStep> nmt_normalizer();
std::unique_ptr<NormalizerStep> strip_normalizer(bool left, bool right);
std::unique_ptr<NormalizerStep> prepend_normalizer(std::string text);
std::unique_ptr<NormalizerStep> replace_normalizer(std::shared_ptr<const Pattern> pattern,
                                                   std::string content);

}  // namespace echelon::tok
