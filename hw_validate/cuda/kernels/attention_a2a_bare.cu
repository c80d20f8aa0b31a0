// attention_a2a.cu without its instrumentation: no op is noted, only the start and the end of each CTA. Shows what noting
// costs.
#define XSTAGE_NO_RECORDS
#include "attention_a2a.cu"
