// ECHELON_CLONES compiles a function for several processors; the best version for the machine is
// selected when the program is loaded. For functions, not for templates.
#pragma once

// The selection runs before a sanitizer is initialised.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ECHELON_HAS_CLONES
#define ECHELON_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ECHELON_CLONES
#endif

// For functions that a clone calls, and templates that it uses: they are inlined, so that they are
// compiled for its processor and not for the oldest.
#define ECHELON_INLINE inline __attribute__((always_inline))
