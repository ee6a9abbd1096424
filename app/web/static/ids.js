// Adds the lines of a text file to the ids that are sent; without scripts they are pasted.

const file = document.getElementById("file");
const ids = document.getElementById("ids");
file.closest("[hidden]").hidden = false;
file.addEventListener("change", async () => {
  if (file.files.length === 0) return;
  const content = await file.files[0].arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(content);
    ids.value = [ids.value, text].filter(Boolean).join("\n");
    file.setCustomValidity("");
    file.value = "";
  } catch {
    file.setCustomValidity("The file is not text in UTF-8");
    file.reportValidity();
  }
});
