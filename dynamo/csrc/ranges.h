/* Ranges around calls of what the user compiled, for profilers of torch's (and NVTX through them). */
#ifndef DYNAMO_RANGES_H
#define DYNAMO_RANGES_H

#ifdef __cplusplus
extern "C" {
#endif

/* Whether a profiler looks at this thread. */
int profiler_runs(void);

/* A new range; `end_range` takes it. */
void *begin_range(const char *name);
void end_range(void *range);

#ifdef __cplusplus
}
#endif
#endif
