// The short cut of a guard program: what held at the last full walk and can be seen not to have changed.
#ifndef DYNAMO_PLAN_H
#define DYNAMO_PLAN_H
#include "machine.h"

// After a walk in which all guards held: notes what the next run may skip.
void plan_make(Program *program, const GuardScope *scope);
void plan_drop(Program *program);  // forgets it, and lets go of what it holds
void plan_free(Program *program);

enum Answer { PLAN_HOLDS, PLAN_FAILS, PLAN_UNKNOWN };
// UNKNOWN: something has changed, or there is no plan: the program must be walked. FAILS: *failed is
// the instruction. HOLDS: the values are in run.values.
Answer plan_run(Program *program, Run &run, int *failed);
// (anchors, stamps, numbers of the instructions that are still run), or None without a plan.
PyObject *plan_summary(Program *program);

#endif
