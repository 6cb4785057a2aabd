#include <ctype.h>
#include <stdio.h>

/* Counts the words of standard input. */
int main(void) {
	long words = 0;
	int c, inside = 0;
	while ((c = getchar()) != EOF) {
		if (isspace(c)) {
			inside = 0;
		} else if (!inside) {
			inside = 1;
			words++;
		}
	}
	printf("%ld\n", words);
	return 0;
}
