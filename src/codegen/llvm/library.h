// The boundary of the code generator's library (libmagneto_codegen): plain C, no C++ object crosses it, so that LLVM
// and its allocations stay on one side. A kernel crosses it as text, in its bare form, which is also its cache key.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct MagnetoCompiled MagnetoCompiled;

enum MagnetoPart {
  MAGNETO_ERROR = 0,    /* why there is no code; empty if there is */
  MAGNETO_OBJECT = 1,   /* an ELF object file that defines magneto_kernel */
  MAGNETO_UNITS = 2,    /* the number of units of the range, an expression of the kernel's symbols */
  MAGNETO_COST = 3,     /* the cost of one unit in bytes, an expression too */
  MAGNETO_IR = 4,       /* LLVM's IR, if asked for */
  MAGNETO_ASSEMBLY = 5, /* machine code as text, if asked for */
  MAGNETO_SCHEDULE = 6, /* the schedule in words, if asked for */
};

enum MagnetoOption {
  MAGNETO_TEXTS = 1, /* make schedule, IR and assembly too */
  /* Other schedules, to be measured against the schedule's own. */
  MAGNETO_OTHER_LANES = 4, /* along rows where it would be across them, and the other way */
  MAGNETO_NARROW = 8,      /* one register at a time */
  MAGNETO_WIDE = 16,       /* twice as many registers */
  MAGNETO_LINES = 32,      /* the assembly says which value of the kernel an instruction is for, as .loc */
  /* From this bit on: the target, the position of its row in codegen/targets.def. */
  MAGNETO_TARGET_SHIFT = 8,
};

/* Version of this boundary; the core refuses another. */
#define MAGNETO_CODEGEN_VERSION 4

/* Compiles a verified kernel. Never null. Thread-safe. */
MagnetoCompiled* magneto_codegen_compile(const char* kernel, size_t length, int options);
const char* magneto_codegen_part(const MagnetoCompiled* compiled, int part, size_t* length);
void magneto_codegen_free(MagnetoCompiled* compiled);
int magneto_codegen_version(void);

#ifdef __cplusplus
}
#endif
