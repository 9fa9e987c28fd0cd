/* What failing.c counts and lets fail; for programs that are linked with it. */
#ifndef FAILING_H
#define FAILING_H

extern long fail_at;      /* the number of the call that fails, from 1 on; 0: none is watched */
extern long fail_calls;   /* so far */
extern long fail_refused; /* calls that failed */
extern int fail_on;       /* all after it fail too */
extern int fail_error;    /* which of the call's errors, from 0 on */

#endif
