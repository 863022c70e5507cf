// ECHELON_CLONES before a function: it is compiled for several processors, and the best that the
// machine has is chosen when the program is loaded. For functions, not for templates.
#pragma once

// The choice runs before a sanitizer is ready for it.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ECHELON_HAS_CLONES
#define ECHELON_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ECHELON_CLONES
#endif

// What a clone calls, and templates that clones are made of: compiled with it, not for the oldest.
#define ECHELON_INLINE inline __attribute__((always_inline))
