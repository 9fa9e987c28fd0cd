/* Declares the counters and settings of failing.c, for programs that are linked with it. */
#ifndef FAILING_H
#define FAILING_H

extern long fail_at;      /* number of the call that fails, from 1 on; 0: calls are not watched */
extern long fail_calls;   /* watched calls so far */
extern long fail_refused; /* calls that failed */
extern int fail_on;       /* all calls after it fail too */
extern int fail_error;    /* which of the call's errors, from 0 on */

#endif
