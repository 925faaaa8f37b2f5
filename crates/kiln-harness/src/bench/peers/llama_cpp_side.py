"""llama.cpp's side of `kiln bench decode` on a GGUF file, through llama-cpp-python; the same language as torch_llm.py."""
import ctypes, time

import llama_cpp


class Side:
    def open(self, r):
        if r["what"] != "decode":
            raise ValueError("it gives the last token's logits only: `kiln bench decode` has the time of its prompts")
        if len(r["prompts"]) != 1:
            raise ValueError("one text at a time")
        self.before = status("VmRSS")
        self.prompt = r["prompts"][0]
        layers = -1 if r["device"].startswith("cuda") else 0
        self.llm = llama_cpp.Llama(
            model_path=r["folder"], n_ctx=r["context"], n_batch=max(512, len(self.prompt)), n_threads=r["threads"],
            n_threads_batch=r["threads"], n_gpu_layers=layers, verbose=False)
        self.vocabulary = self.llm.n_vocab()
        begin = time.perf_counter()
        answer = self.text(min(r["tokens"], 1), float("inf"))
        first = time.perf_counter() - begin
        answer = self.text(r["tokens"], float("inf"))
        size = getattr(llama_cpp, "llama_model_size", None)
        weights = size(self.llm._model.model) if size else None
        return dict(answer, first_call_s=first, peer="llama.cpp, llama-cpp-python " + llama_cpp.__version__, weights_bytes=weights)

    def logits(self):
        """Of the last position, where they lie."""
        pointer = llama_cpp.llama_get_logits_ith(self.llm.ctx, -1)
        return ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float * self.vocabulary)).contents

    def choose(self):
        """Greedy, by llama.cpp's own sampler: no detour through Python's numbers."""
        return llama_cpp.llama_sampler_sample(self.greedy(), self.llm.ctx, -1)

    def greedy(self):
        if not hasattr(self, "sampler"):
            self.sampler = llama_cpp.llama_sampler_init_greedy()
        return self.sampler

    def feed(self, tokens):
        """Straight to llama_decode; the library's `eval` copies the logits about."""
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        failed = llama_cpp.llama_decode(self.llm.ctx, llama_cpp.llama_batch_get_one(array, len(tokens)))
        if failed:
            raise RuntimeError(f"llama_decode: {failed}")

    def prefill(self):
        memory = llama_cpp.llama_get_memory(self.llm.ctx)
        llama_cpp.llama_memory_clear(memory, True)
        self.feed(self.prompt)

    def text(self, tokens, seconds):
        clock = time.perf_counter
        start = begin = clock()
        self.prefill()
        ids = [self.choose()]
        prefill = clock() - begin
        samples = []
        for _ in range(tokens):
            begin = clock()
            self.feed(ids[-1:])
            ids.append(self.choose())
            samples.append((clock() - begin) * 1e3)
            if clock() - start > seconds:
                break
        return dict(prefill_ms=prefill * 1e3, ms=samples, ids=[ids])

    def turn(self, r):
        return self.text(r["repeats"], r["seconds"])

    def memory(self, _):
        return dict(peak_bytes=status("VmHWM") - self.before)

    def check(self, r):
        self.prefill()
        with open(r["file"], "wb") as out:
            out.write(bytes(self.logits()))
            for token in r["follow"][0]:
                self.feed([token])
                out.write(bytes(self.logits()))
        return dict(count=(1 + len(r["follow"][0])) * self.vocabulary)


side = Side()
serve(lambda request: getattr(side, request["do"])(request))
